"""A MariaDB or MySQL server whose log would lack changes, or rows to find them by, is refused before the first run."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pymysql.connections import Connection
from structlog.testing import capture_logs

from cdc_pipeline.errors import SourceError
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.mysql.catalogue import BinlogServer
from cdc_pipeline.sources.mysql.dialect import MARIADB, MYSQL
from cdc_pipeline.sources.mysql.gtid import Gtid
from cdc_pipeline.sources.mysql.gtid_set import GtidSet
from cdc_pipeline.sources.mysql.server_checks import (
    check_array_index,
    check_images,
    check_new_columns,
    check_server,
    warn_of_lost_end,
    warn_of_partial_images,
)
from cdc_pipeline.sources.mysql.shape import MysqlColumn, TableShape

ORDERS = TableSettings.model_validate({"name": "shop.public.orders", "id": ["id"]})
VARIABLES = {
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_metadata": "FULL",
    "binlog_row_image": "FULL",
    "log_bin_compress": "OFF",
    "log_replica_updates": "OFF",
    "gtid_slave_pos": "",
    "wsrep_on": "OFF",
}


def mariadb(*, keeps: timedelta = timedelta(days=7), **variables: str) -> BinlogServer:
    return BinlogServer(
        version_text="10.11.6-MariaDB",
        version=(10, 11),
        dialect=MARIADB,
        variables=VARIABLES | variables,
        place=Gtid(domain=0, server=1, sequence=0),
        retention_seconds=keeps.total_seconds(),
    )


def mysql(*, version: tuple[int, int] = (8, 0), keeps: timedelta = timedelta(days=7), **variables: str) -> BinlogServer:
    more = {
        "gtid_mode": "ON",
        "enforce_gtid_consistency": "ON",
        "log_replica_updates": "ON",
        "binlog_transaction_compression": "",
        "binlog_row_value_options": "",
    }
    server = mariadb(keeps=keeps, **{**more, **variables})
    text = f"{version[0]}.{version[1]}.36"
    return replace(server, version_text=text, version=version, dialect=MYSQL, place=GtidSet())


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (mariadb(log_bin="OFF"), "log_bin = OFF"),
        (mariadb(binlog_format="MIXED"), "binlog_format = MIXED"),
        (mariadb(binlog_row_metadata="MINIMAL"), "binlog_row_metadata = MINIMAL"),
        (mariadb(log_bin_compress="ON"), "log_bin_compress = ON"),
        (mariadb(wsrep_on="ON"), r"replicates from another server \(wsrep_on = ON\), and log_slave_updates = OFF"),
        (mariadb(keeps=timedelta(minutes=59)), "keeps its log for 3540 s"),
        (mysql(version=(5, 7)), "the source is 5.7.36; expected MariaDB 10.5 or newer, or MySQL 8.0 or newer"),
        (mysql(log_bin="OFF"), "log_bin = OFF"),
        (mysql(binlog_format="MIXED"), "binlog_format = MIXED"),
        (mysql(binlog_row_metadata="MINIMAL"), "binlog_row_metadata = MINIMAL"),
        (mysql(gtid_mode="OFF_PERMISSIVE"), "gtid_mode = OFF_PERMISSIVE"),
        (mysql(enforce_gtid_consistency="WARN"), "enforce_gtid_consistency = WARN"),
        (mysql(log_replica_updates="OFF"), "log_replica_updates = OFF"),
        (
            mysql(binlog_transaction_compression="ON"),
            "binlog_transaction_compression = ON; .* and end the sessions that are open: they keep the old value",
        ),
        (mysql(binlog_row_value_options="PARTIAL_JSON"), "binlog_row_value_options = PARTIAL_JSON"),
        (mysql(keeps=timedelta(minutes=59)), "keeps its log for 3540 s"),
    ],
    ids=lambda value: "" if isinstance(value, str) else value.dialect.name,
)
def test_a_server_whose_log_would_lack_changes_is_refused(server: BinlogServer, words: str) -> None:
    unconnected: Connection[Any] = Connection(defer_connect=True)
    with pytest.raises(SourceError, match=words):
        check_server(unconnected, server)


@pytest.mark.parametrize(("image", "is_warned"), [("FULL", False), ("MINIMAL", True), ("NOBLOB", True)])
def test_a_mariadb_whose_updates_leave_columns_out_is_warned_of(image: str, *, is_warned: bool) -> None:
    with capture_logs() as logs:
        warn_of_partial_images(mariadb(binlog_row_image=image))
    assert [log["event"] for log in logs] == (["updates leave columns out"] if is_warned else [])


@pytest.mark.parametrize(("value", "is_warned"), [("1", False), ("0", True), ("1000", True)])
def test_a_server_whose_log_may_lose_its_end_is_warned_of(value: str, *, is_warned: bool) -> None:
    with capture_logs() as logs:
        warn_of_lost_end(mariadb(sync_binlog=value))
    assert [log["found"] for log in logs] == ([f"sync_binlog = {value}"] if is_warned else [])


@pytest.mark.parametrize(
    ("key", "image", "is_refused"),
    [
        (["id"], "MINIMAL", False),
        (["name"], "MINIMAL", True),
        ([], "NOBLOB", True),
        (["name"], "FULL", False),
    ],
)
def test_a_table_that_needs_old_rows_is_refused_unless_they_are_logged(
    key: Sequence[str], image: str, *, is_refused: bool
) -> None:
    server = mariadb(binlog_row_image=image)
    if is_refused:
        with pytest.raises(SourceError, match="binlog_row_image = FULL, or an id within the primary key"):
            check_images(ORDERS, key, ["id"], server)
    else:
        check_images(ORDERS, key, ["id"], server)


def test_a_table_with_a_multi_valued_index_is_refused() -> None:
    check_array_index(ORDERS, None)
    with pytest.raises(SourceError, match=r"has the multi-valued index zips; .*DROP INDEX zips ON"):
        check_array_index(ORDERS, "zips")


@pytest.mark.parametrize("name", ["twice", "note"])
def test_a_column_may_be_excluded_also_if_the_log_leaves_it_out(name: str) -> None:
    """Such as a computed one of MariaDB 11."""
    columns = tuple(MysqlColumn(name=name, written="int(11)", type="int4", nullable=True) for name in ("id", "note"))
    shape = TableShape(columns=columns, left_out=("twice",))
    check_new_columns(ORDERS.model_copy(update={"exclude_columns": (name,)}), ["id"], shape)
    with pytest.raises(SourceError, match="names 'twic', which is not in the table; expected one of note, twice"):
        check_new_columns(ORDERS.model_copy(update={"exclude_columns": (name, "twic")}), ["id"], shape)
