"""`verify` gives each table its verdict, whatever became of the others, and compares what the source has now."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.operations.verification import Verified
from cdc_pipeline.record import TableName
from cdc_pipeline.wiring import Pipeline
from tests.support.pipelines import (
    consume,
    opened_pipeline,
    pipeline_settings,
    set_up_and_consume,
    spark_session,
    take_snapshot,
)
from tests.support.postgres import fresh_store
from tests.support.streams import run_sql

NAMES = ("added", "busy", "columns", "damaged", "equal", "new", "stale", "unfit")
CREATE = "CREATE TABLE {} (id int PRIMARY KEY, day date, note text)"
FILL = "INSERT INTO {} VALUES (1, '2024-01-01', 'one'), (2, '2024-01-02', 'two')"
SHORT = timedelta(seconds=10)
AN_HOUR = timedelta(hours=1)


@pytest.fixture
def pipeline(postgres: PostgresServer, database: str, spark_url: str, tmp_path: Path) -> Iterator[Pipeline]:
    """Every table but the new one has a snapshot, and a change behind it that is registered."""
    run_sql(database, *(CREATE.format(name) for name in NAMES), *(FILL.format(name) for name in NAMES))
    dropped = {name: "keep" if name == "added" else "drop" for name in NAMES}
    tables = [{"name": f"public.{name}", "dropped_columns": what} for name, what in dropped.items()]
    with (
        fresh_store(postgres) as store_url,
        opened_pipeline(
            pipeline_settings(tmp_path, database, tables), store_url=store_url, spark_url=spark_url
        ) as pipeline,
    ):
        pipeline.source_setup().set_up()
        set_up_and_consume(pipeline)
        take_snapshot(pipeline, *(name for name in pipeline.table_names() if name.table != "new"))
        run_sql(database, *(f"UPDATE {name} SET note = 'changed' WHERE id = 2" for name in NAMES))
        consume(pipeline)
        yield pipeline


def named(pipeline: Pipeline, table: str) -> TableName:
    return next(name for name in pipeline.table_names() if name.table == table)


def id_of(pipeline: Pipeline, table: str) -> int:
    return pipeline.store.tables.table(named(pipeline, table)).table_id


def damage_file(pipeline: Pipeline, table: str) -> None:
    rows = pipeline.store.inspection.run("slices", {"table": str(named(pipeline, table))})
    pipeline.objects.delete(next(row["path"] for row in rows if row["path"]))


def tamper(pipeline: Pipeline, table: str, *statements: str) -> None:
    lake = f"delta.`{pipeline.lake_url(named(pipeline, table))}`"
    for statement in statements:
        spark_session(pipeline).sql(statement.format(lake)).collect()


def verdicts(pipeline: Pipeline) -> dict[str, Verified]:
    return {found.table.table: found for found in pipeline.verification().verify(pipeline.table_names(), timeout=SHORT)}


def test_each_table_has_a_verdict_whatever_became_of_the_others(pipeline: Pipeline, database: str) -> None:
    damage_file(pipeline, "damaged")
    pipeline.store.stale_tables.mark(id_of(pipeline, "stale"), "it was dropped")
    pipeline.store.leases.acquire(id_of(pipeline, "busy"), owner="somebody", duration=AN_HOUR)
    run_sql(database, "INSERT INTO unfit VALUES (3, 'infinity', 'three'), (4, '2024-01-04', 'four')")
    for name in ("added", "columns"):
        pipeline.slice_worker().slice_to_lake(named(pipeline, name))
    tamper(pipeline, "added", "ALTER TABLE {} ADD COLUMNS (by_somebody STRING)")
    tamper(
        pipeline,
        "columns",
        "ALTER TABLE {} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "ALTER TABLE {} RENAME COLUMN day TO day_before",
    )
    found = verdicts(pipeline)
    assert tuple(found) == NAMES
    assert [name for name, verdict in found.items() if verdict.is_equal] == ["equal"]
    assert len({verdict.position for verdict in found.values()}) == 1
    assert "it was dropped" in found["stale"].problem
    assert "has no published snapshot" in found["new"].problem
    assert "run cdc snapshot" in found["new"].problem
    assert "the object is gone" in found["damaged"].problem
    assert found["busy"].problem == "it was not applied up to the position in the time given"
    assert [found[name].comparison for name in ("busy", "damaged", "new", "stale")] == [None] * 4
    assert found["added"].columns_extra == ("by_somebody",)
    check_columns(found["columns"])
    check_withheld(pipeline, found["unfit"])


def check_columns(verdict: Verified) -> None:
    """They are a difference also where every row is equal over those that both sides have."""
    assert (verdict.columns_missing, verdict.columns_extra) == (("day",), ("day_before",))
    assert verdict.comparison is not None
    assert (verdict.comparison.source_rows, verdict.comparison.differing_rows) == (2, 0)


def check_withheld(pipeline: Pipeline, verdict: Verified) -> None:
    assert (verdict.rows_withheld, len(verdict.why_withheld)) == (1, 1)
    assert "does not fit the lake's" in verdict.why_withheld[0]
    assert verdict.comparison is not None
    assert [(row.id["id"], row.kind) for row in verdict.comparison.differences] == [(3, "missing")]
    (row,) = pipeline.store.inspection.run("lag", {"table": str(verdict.table)})
    assert (row["rows_withheld"], row["reason"]) == (1, "rows of it wait in quarantine")
