"""PostgreSQL → slice files → snapshot → Delta Lake, verb by verb."""

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.record import history_name
from cdc_pipeline.wiring import Pipeline
from tests.support.pipelines import (
    consume,
    lake_rows,
    opened_pipeline,
    pipeline_settings,
    set_up_and_consume,
    spark_session,
    take_snapshot,
)
from tests.support.postgres import fresh_store
from tests.support.streams import run_sql

CREATE = """
CREATE TABLE items (
    id int PRIMARY KEY, name text, body text, price numeric(10,2),
    created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
ALTER TABLE items ALTER body SET STORAGE EXTERNAL
"""
ITEMS = {
    "name": "public.items",
    "create_time": "created_at",
    "update_time": "updated_at",
    "partition_by": [{"column": "created_at", "unit": "month"}],
    "history": True,
}
INSERT = "INSERT INTO items VALUES ({}, {}, repeat('x', 5000), 1.5, '2024-0{}-01', '2024-01-01')"


@pytest.fixture
def pipeline(postgres: PostgresServer, database: str, spark_url: str, tmp_path: Path) -> Iterator[Pipeline]:
    run_sql(database, CREATE)
    settings = pipeline_settings(tmp_path, database, [ITEMS], source={"stream_partitions": 2})
    with (
        fresh_store(postgres) as store_url,
        opened_pipeline(settings, store_url=store_url, spark_url=spark_url) as pipeline,
    ):
        yield pipeline


def shown(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["id"], row["name"], row["body"] and len(row["body"]), row["_cdc_created_at_month"]) for row in rows]


def test_the_lake_equals_the_source_after_snapshot_and_slices(pipeline: Pipeline, database: str) -> None:
    (items,) = pipeline.table_names()
    run_sql(database, *(INSERT.format(number, "'old'", number % 2 + 1) for number in range(1, 5)))
    set_up_and_consume(pipeline)
    run_sql(database, "UPDATE items SET name = 'before the cutoff' WHERE id = 1")
    (snapshot,) = take_snapshot(pipeline, items, slots=2)
    assert (snapshot.state, snapshot.rows) == ("published", 4)
    assert shown(lake_rows(pipeline, items)) == [
        (1, "before the cutoff", 5000, "2024-02"),
        (2, "old", 5000, "2024-01"),
        (3, "old", 5000, "2024-02"),
        (4, "old", 5000, "2024-01"),
    ]
    run_sql(
        database,
        "UPDATE items SET name = 'partly', price = 2 WHERE id = 2",
        "DELETE FROM items WHERE id = 3",
        "UPDATE items SET id = 40 WHERE id = 4",
        INSERT.format(5, "'new'", 3),
    )
    end = consume(pipeline)
    applied = pipeline.slice_worker().slice_to_lake(items)
    (counts,) = (done.counts for done in applied.outcomes)
    assert (counts.inserted, counts.updated, counts.deleted) == (2, 1, 2)
    rows = lake_rows(pipeline, items)
    assert sorted(shown(rows)) == [
        (1, "before the cutoff", 5000, "2024-02"),
        (2, "partly", 5000, "2024-01"),
        (5, "new", 5000, "2024-03"),
        (40, "old", 5000, "2024-01"),
    ]
    assert next(row["price"] for row in rows if row["id"] == 2) == Decimal("2.00")
    position = pipeline.store.lake_positions.lake_position(pipeline.store.tables.table(items).table_id)
    assert position.position == f"{end:016x}"
    check_history(lake_rows(pipeline, history_name(items)), snapshot.cutoff_time)


def check_history(rows: list[dict[str, Any]], cutoff: datetime | None) -> None:
    """What the first test's events leave in the history, each text whole although an update left it out."""
    was = sorted(rows, key=lambda row: (row["id"], row["_cdc_version"]))
    assert [(row["id"], row["name"], row["body"] and len(row["body"]), row["_cdc_current"]) for row in was] == [
        (1, "before the cutoff", 5000, True),
        (2, "old", 5000, False),
        (2, "partly", 5000, True),
        (3, "old", 5000, False),
        (4, "old", 5000, False),
        (5, "new", 5000, True),
        (40, "old", 5000, True),
    ]
    moments = [row["_cdc_valid_from"] for row in was]
    assert moments[0] == moments[1] == cutoff < moments[2] == was[1]["_cdc_valid_to"]


def test_a_second_run_over_applied_slices_changes_nothing(pipeline: Pipeline, database: str) -> None:
    (items,) = pipeline.table_names()
    set_up_and_consume(pipeline)
    take_snapshot(pipeline, items)
    run_sql(database, INSERT.format(1, "'one'", 1))
    consume(pipeline)
    worker = pipeline.slice_worker()
    assert [done.counts.inserted for done in worker.slice_to_lake(items).outcomes] == [1]
    version = pipeline.lake.read_version(pipeline.lake_table(items))
    assert worker.slice_to_lake(items).outcomes == ()
    consume(pipeline)
    assert worker.slice_to_lake(items).outcomes == ()
    assert pipeline.lake.read_version(pipeline.lake_table(items)) == version


def test_verify_finds_every_row_that_differs_and_says_how(pipeline: Pipeline, database: str) -> None:
    (items,) = pipeline.table_names()
    run_sql(database, *(INSERT.format(number, "'same'", 1) for number in range(1, 5)))
    set_up_and_consume(pipeline)
    take_snapshot(pipeline, items)
    run_sql(database, "UPDATE items SET name = 'later' WHERE id = 4")
    (equal,) = pipeline.verification().verify([items])
    assert equal.comparison is not None
    assert (equal.is_equal, equal.comparison.source_rows, equal.comparison.lake_rows) == (True, 4, 4)
    lake = f"delta.`{pipeline.lake_url(items)}`"
    spark_session(pipeline).sql(f"UPDATE {lake} SET name = 'tampered' WHERE id = 1").collect()
    spark_session(pipeline).sql(f"DELETE FROM {lake} WHERE id = 2").collect()
    spark_session(pipeline).sql(f"INSERT INTO {lake} SELECT 9, * EXCEPT (id) FROM {lake} WHERE id = 3").collect()
    (found,) = pipeline.verification().verify([items])
    assert not found.is_equal
    assert found.comparison is not None
    assert found.comparison.differing_rows == len(found.comparison.differences)
    assert [(row.id["id"], row.kind) for row in found.comparison.differences][:2] == [(1, "different"), (2, "missing")]
    assert found.comparison.differences[0].columns == ("name",)
