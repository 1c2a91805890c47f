"""What the real Debezium recorded of a PostgreSQL server ends as the server ended, however it is laid into files."""

from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.record import TableName
from tests.support.event_files import EventFolder, events_of, slices_of
from tests.support.recordings import (
    ORDER_40,
    PLAIN,
    WITH_SCHEMA,
    lay_out,
    position,
    recorded,
    shown,
    until_the_last_statement,
)

ORDERS = TableName.parse("shop.public.orders")
KEY_CHANGE = 28340664


@pytest.mark.parametrize("layout", ["one", "recorded"])
@pytest.mark.parametrize(
    ("recording", "tables", "misfit"),
    [("postgres_plain", PLAIN, "amount"), ("postgres_with_schema", WITH_SCHEMA, "upd")],
)
def test_the_recording_ends_as_the_server_did(
    recording: str, tables: tuple[dict[str, Any], ...], misfit: str, layout: str, tmp_path: Path, database: str
) -> None:
    """The order of infinities and NaN is quarantined whole, and gone by the truncate in any case."""
    events = EventFolder(folder=tmp_path, store_url=database, tables=tables)
    lay_out(events, until_the_last_statement(recorded(recording)), layout)
    events.consume()
    assert shown(events.rows("public.orders")) == [ORDER_40]
    assert events.rows("public.keyless") == []
    (kept,) = events.quarantined()
    assert f"the value of {misfit} does not fit the lake's" in kept["reason"]


@pytest.mark.parametrize("layout", ["one", "recorded"])
def test_the_recording_cut_behind_every_transaction_ends_the_same(layout: str, tmp_path: Path, database: str) -> None:
    events = EventFolder(folder=tmp_path, store_url=database, tables=PLAIN, source={"slice_rows": 1})
    lay_out(events, until_the_last_statement(recorded("postgres_plain")), layout)
    events.consume()
    with events.opened() as pipeline:
        assert len(slices_of(pipeline, ORDERS)) > 10
    assert shown(events.rows("public.orders")) == [ORDER_40]
    assert events.rows("public.keyless") == []


def test_a_key_change_of_the_recording_keeps_the_text_that_was_not_sent(tmp_path: Path, database: str) -> None:
    """The new half stands in another stream partition than the old one, and does not hold the large text."""
    events = EventFolder(folder=tmp_path, store_url=database, tables=WITH_SCHEMA)
    before = [message for message in recorded("postgres_with_schema") if 0 < position(message) <= KEY_CHANGE]
    lay_out(events, before, "recorded")
    events.consume()
    (moved,) = (row for row in events.rows("public.orders") if row["id"] == 11)
    assert (moved["customer"], moved["big"]) == ("upd", "q" * 9000)
    assert [row["id"] for row in events.rows("public.orders")] == [1, 11, 2, 3]


def test_the_whole_recording_holds_what_came_behind_the_statements(tmp_path: Path, database: str) -> None:
    events = EventFolder(folder=tmp_path, store_url=database, tables=PLAIN)
    lay_out(events, recorded("postgres_plain"), "recorded")
    events.consume()
    assert [row["id"] for row in events.rows("public.orders")] == [40, 50]


def test_mariadb_is_read_by_its_database_and_ordered_by_its_log(tmp_path: Path, database: str) -> None:
    """Both spellings of a table without a schema. Most inserts were left out of the recording."""
    columns = {"id": "bigint", "customer": "text", "amount": "numeric(12,2)", "qty": "int", "created": "timestamp"}
    tables = ({"name": "shop.ev2", "columns": columns}, {"name": "public.ev", "columns": columns})
    events = EventFolder(folder=tmp_path, store_url=database, tables=tables)
    lay_out(events, recorded("mariadb_plain"), "recorded")
    events.consume()
    assert (events.rows("shop.ev2"), events.rows("public.ev")) == ([], [])
    with events.opened() as pipeline:
        found = events_of(pipeline, TableName.parse("shop.public.ev"))
    assert {row["_cdc_op"] for row in found} == {"i", "u", "d", "t"}
    assert events.quarantined() == []
