"""`cdc maintain`: the daily work on the lake's files without Airflow. A table that fails or is busy stops no other."""

import os
import time
from datetime import timedelta

from cdc_pipeline.metadata_store.store import open_metadata_store
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import no_step
from tests.support.command_line import CommandLine
from tests.support.streams import run_sql

ERROR, BUSY = 1, 4
DAYS = 24 * 60 * 60


def test_maintain_deletes_unused_files_also_beside_a_table_that_fails(cdc: CommandLine, spark_url: str) -> None:
    run_sql(cdc.source_url, "CREATE TABLE customers (id int PRIMARY KEY)", "INSERT INTO customers VALUES (1)")
    tables = [f"{cdc.name}.public.{name}" for name in ("orders", "customers")]
    cdc.write_settings(tables=[{"name": name} for name in tables], spark=spark_url)
    assert cdc.run("snapshot").exit_code == 0
    orders, customers = (cdc.folder / "lake" / "datalake" / name.replace(".", "/") for name in tables)
    unused = customers / "part-00000-unused.parquet"
    unused.write_bytes(b"of a write that was killed")
    os.utime(unused, (time.time() - 8 * DAYS,) * 2)
    for commit in (orders / "_delta_log").glob("*.json"):
        commit.write_text("no commit\n", encoding="utf-8")
    ended = cdc.run("maintain", "--json")
    failed, done = ended.rows
    assert ended.exit_code == ERROR
    assert (failed["table"], failed["files"], failed["ended"] == "done") == (tables[0], None, False)
    assert (done["table"], done["ended"], done["files"]) == (tables[1], "done", "no file needs it")
    assert not unused.exists()
    assert cdc.run("maintain", tables[1]).exit_code == 0


def test_maintain_leaves_a_table_without_a_lake_and_one_that_somebody_else_works_on(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    ended = cdc.run("maintain", "--json")
    assert (ended.exit_code, ended.rows[0]["ended"]) == (0, "the table has no lake yet")
    with open_metadata_store(cdc.store_url, stream="shop", on_step=no_step) as store:
        table_id = store.tables.table(TableName.parse(f"{cdc.name}.public.orders")).table_id
        store.leases.acquire(table_id, owner="somebody", duration=timedelta(hours=1))
        ended = cdc.run("maintain", "--timeout", "0", "--json")
    assert ended.exit_code == BUSY
    assert "left for the next run: " in ended.rows[0]["ended"]
    assert "is held by somebody" in ended.rows[0]["ended"]
