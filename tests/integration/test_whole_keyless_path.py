"""A table without a key, PostgreSQL → snapshot → slices → Delta Lake: every row as often as the source has it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.wiring import Pipeline
from tests.support.command_line import query
from tests.support.pipelines import (
    consume,
    lake_rows,
    opened_pipeline,
    pipeline_settings,
    set_up_and_consume,
    take_snapshot,
)
from tests.support.postgres import fresh_store
from tests.support.streams import run_sql

CREATE = """
CREATE TABLE notes (body text, amount int, at date);
ALTER TABLE notes ALTER body SET STORAGE EXTERNAL;
ALTER TABLE notes REPLICA IDENTITY FULL
"""
NEVER, AFTER_THE_FIX = "infinity", "9999-12-31"
MEND = f"UPDATE cdc.quarantine SET payload = replace(payload::text, '{NEVER}', '{AFTER_THE_FIX}')::json"
SOURCE = f"SELECT body, amount, CASE at WHEN '{NEVER}' THEN '{AFTER_THE_FIX}' ELSE at END FROM notes"


@pytest.fixture
def pipeline(postgres: PostgresServer, database: str, spark_url: str, tmp_path: Path) -> Iterator[Pipeline]:
    run_sql(database, CREATE)
    notes = {"name": "public.notes", "partition_by": [{"column": "at", "unit": "year"}]}
    settings = pipeline_settings(tmp_path, database, [notes], source={"stream_partitions": 2})
    with (
        fresh_store(postgres) as store_url,
        opened_pipeline(settings, store_url=store_url, spark_url=spark_url) as pipeline,
    ):
        yield pipeline


def in_lake(pipeline: Pipeline) -> Counter[tuple[Any, ...]]:
    (notes,) = pipeline.table_names()
    rows = [row for row in lake_rows(pipeline, notes) if not row.get("_cdc_deleted")]
    return Counter((row["body"], row["amount"], row["at"]) for row in rows)


def apply(pipeline: Pipeline) -> None:
    pipeline.slice_worker().slice_to_lake(*pipeline.table_names())


def test_the_lake_has_every_row_as_often_as_the_source(pipeline: Pipeline, database: str) -> None:
    run_sql(
        database,
        "INSERT INTO notes SELECT 'twin', 1, '2024-01-01' FROM generate_series(1, 3)",
        f"INSERT INTO notes VALUES (NULL, NULL, NULL), ('never', 2, '{NEVER}'), ('never', 2, '{NEVER}')",
    )
    set_up_and_consume(pipeline)
    (snapshot,) = take_snapshot(pipeline, *pipeline.table_names())
    assert (snapshot.state, snapshot.rows) == ("published", 4)
    run_sql(
        database,
        "DELETE FROM notes WHERE ctid = '(0,1)'",
        "UPDATE notes SET amount = 5 WHERE ctid = '(0,2)'",
        "INSERT INTO notes VALUES (repeat('x', 5000), 3, '2025-01-01'), ('twin', 1, '2024-01-01')",
        "UPDATE notes SET amount = 4 WHERE amount = 3",
        "UPDATE notes SET at = '2026-01-01' WHERE body IS NULL",
        f"INSERT INTO notes VALUES ('late', 6, '{NEVER}')",
    )
    consume(pipeline)
    apply(pipeline)
    assert sum(in_lake(pipeline).values()) == len(query(database, SOURCE)) - 3
    run_sql(pipeline.endpoints.metadata_store_url, MEND)
    outcomes = pipeline.replay().run(pipeline.store.quarantine.entries())
    assert [outcome.state for outcome in outcomes] == [QuarantineState.REPLAYED] * 3
    apply(pipeline)
    assert in_lake(pipeline) == Counter(query(database, SOURCE))
