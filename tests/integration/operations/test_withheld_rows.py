"""A repair leaves alone the rows whose values the lake's types cannot hold, and says how many they are and why."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.record import TableName, history_name
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
CREATE TABLE days (id int PRIMARY KEY, day date, note text);
CREATE TABLE odd (price numeric(5,2), at timestamptz, size float8, day date, PRIMARY KEY (price, at, size));
INSERT INTO days VALUES (1, '2024-01-01', 'one'), (2, '2024-01-02', 'two');
INSERT INTO odd VALUES (1.5, '2024-01-01 00:00Z', 'NaN', '2024-01-01'), (2.5, '2024-01-01 00:00Z', 0, '2024-01-01')
"""
WITHHELD = (
    "INSERT INTO days VALUES (3, 'infinity', 'three')",
    "UPDATE days SET day = 'infinity', note = 'two again' WHERE id = 2",
    "INSERT INTO odd VALUES ('NaN', '2024-01-01 00:00Z', 1), (1.5, 'infinity', 1), (1.5, 'infinity', 2)",
    "UPDATE odd SET day = 'infinity' WHERE price = 1.5 AND at = '2024-01-01 00:00Z'",
)
TABLES: list[dict[str, Any]] = [{"name": "public.days", "history": True}, {"name": "public.odd"}]


@pytest.fixture
def pipeline(postgres: PostgresServer, database: str, spark_url: str, tmp_path: Path) -> Iterator[Pipeline]:
    """The lake has the rows from before the changes that it cannot hold."""
    run_sql(database, CREATE)
    settings = pipeline_settings(tmp_path, database, TABLES)
    with (
        fresh_store(postgres) as store_url,
        opened_pipeline(settings, store_url=store_url, spark_url=spark_url) as pipeline,
    ):
        set_up_and_consume(pipeline)
        take_snapshot(pipeline, *pipeline.table_names())
        run_sql(database, *WITHHELD)
        consume(pipeline)
        for name in pipeline.table_names():
            pipeline.slice_worker().slice_to_lake(name)
        yield pipeline


def tamper(pipeline: Pipeline, name: TableName, statement: str) -> None:
    spark_session(pipeline).sql(statement.format(f"delta.`{pipeline.lake_url(name)}`")).collect()


def days_in(pipeline: Pipeline, name: TableName) -> list[tuple[object, ...]]:
    return sorted((row["id"], str(row["day"]), row["note"]) for row in lake_rows(pipeline, name))


def test_a_row_that_the_lake_cannot_hold_is_neither_written_nor_removed(pipeline: Pipeline) -> None:
    days, _ = pipeline.table_names()
    valid = [(1, "2024-01-01", "one"), (2, "2024-01-02", "two")]
    tamper(pipeline, days, "UPDATE {} SET note = 'tampered' WHERE id = 1")
    repaired = pipeline.repair().run(days)
    assert days_in(pipeline, days) == valid
    assert days_in(pipeline, history_name(days)) == valid
    assert (repaired.rows_written, repaired.rows_removed, repaired.rows_withheld) == (1, 0, 2)
    assert repaired.why_withheld == "the value of day does not fit the lake's date"


def test_a_row_whose_id_the_lake_cannot_hold_is_left_out(pipeline: Pipeline) -> None:
    _, odd = pipeline.table_names()
    before = repr(lake_rows(pipeline, odd))  # in which NaN equals NaN
    tamper(pipeline, odd, "INSERT INTO {0} SELECT 9.5, * EXCEPT (price) FROM {0} WHERE price = 2.5")
    repaired = pipeline.repair().run(odd)
    assert repr([row for row in lake_rows(pipeline, odd) if not row["_cdc_deleted"]]) == before
    assert (repaired.rows_written, repaired.rows_removed, repaired.rows_withheld) == (0, 1, 4)
    assert repaired.why_withheld is not None
    assert set(repaired.why_withheld.split("; ")) == {
        "the value of price does not fit the lake's numeric(5,2)",
        "the value of at does not fit the lake's timestamptz",
        "the value of day does not fit the lake's date",
    }


def test_a_table_of_which_only_withheld_rows_differ_is_as_it_was(pipeline: Pipeline) -> None:
    days, _ = pipeline.table_names()
    repaired = pipeline.repair().run(days)
    assert (repaired.slice_number, repaired.rows_withheld) == (None, 2)
    assert not pipeline.store.tables.table(days).under_repair
