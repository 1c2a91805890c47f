"""A folder with a pipeline.yml and events is enough: `cdc consume` and `cdc apply`, and the lake is there."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
from pyspark.sql import SparkSession

from tests.support.command_line import CommandLine, end_of, query
from tests.support.command_server import CommandServer
from tests.support.eventually import eventually
from tests.support.streams import database_of

PLACEHOLDER = "__debezium_unavailable_value"
COLUMNS = {"id": "bigint", "name": "text", "big": "text"}
TABLES = [
    {"name": "shop.public.orders", "columns": COLUMNS, "id": ["id"]},
    {"name": "shop.public.moves", "columns": {"id": "bigint", "n": "numeric(6,2)"}},
    {"name": "shop.public.silent"},
]
WAITS_FOR_A_LOCK = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = '{}'"
Row = dict[str, Any]


def event(table: str, op: str, lsn: int, before: Row | None = None, after: Row | None = None, **key: Any) -> Row:
    source = {"connector": "postgresql", "db": "shop", "schema": "public", "table": table, "lsn": lsn, "txId": lsn}
    value = {"op": op, "before": before, "after": after, "source": source | {"ts_ms": 1_700_000_000_000}}
    return {"key": None, "value": value, "headers": {f"__debezium.{name}": id_ for name, id_ in key.items()}}


def write(path: Path, *lines: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def order(id_: int, name: str, big: str = "B" * 100) -> Row:
    return {"id": id_, "name": name, "big": big}


def in_lake(spark: SparkSession, folder: Path, table: str) -> list[Row]:
    """What a reader sees."""
    frame = spark.read.format("delta").load(str(folder / "lake" / "datalake" / "shop" / "public" / table))
    seen = frame.where("NOT coalesce(_cdc_deleted, false)") if "_cdc_deleted" in frame.columns else frame
    names = [name for name in frame.columns if not name.startswith("_cdc_")]
    return sorted((row.asDict() for row in seen.select(*names).collect()), key=str)


def test_files_become_a_lake_without_a_server_or_a_snapshot(
    tmp_path: Path, database: str, spark_url: str, spark: SparkSession, command_server: CommandServer
) -> None:
    cdc = CommandLine(folder=tmp_path, source_url="nowhere/shop", store_url=database, server=command_server)
    cdc.write_settings(source={"kind": "debezium_files", "path": "events"}, tables=TABLES, spark=spark_url)
    first, second = tmp_path / "events" / "0" / "a.jsonl", tmp_path / "events" / "1" / "a.jsonl"
    write(first, event("orders", "c", 1, after=order(1, "one")), event("orders", "c", 2, after=order(2, "two")))
    copies = enumerate(("1.50", "1.50", "2"), start=3)
    write(second, *(event("moves", "c", lsn, after={"id": 1, "n": n}) for lsn, n in copies))
    assert cdc.run("setup-source").exit_code == 0
    assert cdc.run("consume", "--until-idle").exit_code == 0
    applied = cdc.run("apply", "--until-idle", "--json")
    assert applied.exit_code == 0, applied.errors
    assert {row["table"]: row["inserted"] for row in applied.rows} == {
        "shop.public.orders": 2,
        "shop.public.moves": 3,
        "shop.public.silent": 0,
    }
    write(first, event("orders", "d", 6, before={"id": 1}, newkey={"id": 9}))
    write(second, event("orders", "c", 6, after=order(9, "moved", PLACEHOLDER), oldkey={"id": 1}))
    write(second, event("moves", "d", 7, before={"id": 1, "n": "1.50"}), {"key": None, "value": None})
    write(first, event("orders", "u", 8, after=order(2, "changed", PLACEHOLDER)))
    assert cdc.run("consume", "--until-idle").exit_code == 0
    applied = cdc.run("apply", "--until-idle")
    assert applied.exit_code == 0, applied.errors
    assert in_lake(spark, tmp_path, "orders") == [order(2, "changed"), order(9, "moved")]
    assert [str(row["n"]) for row in in_lake(spark, tmp_path, "moves")] == ["1.50", "2.00"]
    refused = cdc.run("verify")
    assert refused.exit_code == 2
    assert "the source of shop is of the kind debezium_files" in refused.error
    refused = cdc.run("snapshot")
    assert refused.exit_code == 2
    assert "its tables begin empty, or with exported files" in refused.error


def test_apply_reads_a_changed_pipeline_yml_again(
    tmp_path: Path, database: str, spark_url: str, command_server: CommandServer
) -> None:
    cdc = CommandLine(folder=tmp_path, source_url="nowhere/shop", store_url=database, server=command_server)
    events = {"kind": "debezium_files", "path": "events"}
    cdc.write_settings(source=events, tables=TABLES, spark=spark_url)
    (tmp_path / "events" / "0").mkdir(parents=True)
    assert cdc.run("setup-source").exit_code == 0
    with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
        cursor.execute("LOCK cdc.source_table")
        applying = cdc.start("apply", "shop.public.orders")
        waits = WAITS_FOR_A_LOCK.format(database_of(database))
        assert eventually(lambda: query(database, waits) == [(1,)])
        cdc.write_settings(source=events, tables=TABLES[1:], spark=spark_url)
    ended = end_of(applying)
    assert ended.exit_code == 2
    assert "pipeline.yml lists no table 'shop.public.orders'" in ended.error
