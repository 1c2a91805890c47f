"""A lake that somebody changed behind the pipeline's back is mended while the source goes on, row by row."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from cdc_pipeline.errors import UsageError
from cdc_pipeline.lake.differences import Comparison, Difference
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.operations.repair import Repaired
from cdc_pipeline.record import history_name
from cdc_pipeline.steps import Moment
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
CREATE TABLE things (id int PRIMARY KEY, name text, price numeric(10,2));
CREATE TABLE notes (body text);
CREATE TABLE parts (id int PRIMARY KEY, name text);
ALTER TABLE notes REPLICA IDENTITY FULL;
INSERT INTO things SELECT n, 'name ' || n, n FROM generate_series(1, 9) AS n
"""
TABLES: list[dict[str, Any]] = [
    {"name": "public.things", "deletes": "soft"},
    {"name": "public.notes"},
    {"name": "public.parts", "history": True},
]


@pytest.fixture
def pipeline(postgres: PostgresServer, database: str, spark_url: str, tmp_path: Path) -> Iterator[Pipeline]:
    run_sql(database, CREATE)
    settings = pipeline_settings(tmp_path, database, TABLES)
    with (
        fresh_store(postgres) as store_url,
        opened_pipeline(settings, store_url=store_url, spark_url=spark_url) as pipeline,
    ):
        set_up_and_consume(pipeline)
        take_snapshot(pipeline, *pipeline.table_names())
        yield pipeline


def written_by(pipeline: Pipeline) -> dict[object, object]:
    """The version of each row of the lake, by id."""
    return {row["id"]: row["_cdc_version"] for row in lake_rows(pipeline, pipeline.table_names()[0])}


def test_only_the_rows_that_differ_are_written_and_flagged_ones_stay(pipeline: Pipeline, database: str) -> None:
    things, notes, _ = pipeline.table_names()
    run_sql(database, "DELETE FROM things WHERE id = 9")
    consume(pipeline)
    pipeline.slice_worker().slice_to_lake(things)
    lake = f"delta.`{pipeline.lake_url(things)}`"
    for statement in (
        f"DELETE FROM {lake} WHERE id = 1",
        f"INSERT INTO {lake} SELECT 77, * EXCEPT (id) FROM {lake} WHERE id = 3",
        f"UPDATE {lake} SET name = 'tampered' WHERE id = 2",
    ):
        spark_session(pipeline).sql(statement).collect()
    before = written_by(pipeline)
    run_sql(database, "UPDATE things SET name = 'meanwhile' WHERE id = 4", "INSERT INTO things VALUES (10, 'new', 1)")
    repaired = pipeline.repair().run(things)
    assert (repaired.rows_written, repaired.rows_removed) == (2, 1)
    (verdict,) = pipeline.verification().verify([things])
    assert verdict.is_equal
    after = written_by(pipeline)
    assert {id_ for id_, version in after.items() if version != before.get(id_)} >= {1, 2, 4, 10, 77}
    assert all(after[id_] == before[id_] for id_ in (3, 5, 6, 7, 8, 9))
    assert [row["name"] for row in lake_rows(pipeline, things) if row["id"] == 9] == ["name 9"]
    again = pipeline.repair().run(things)
    assert again == Repaired(table=things, position=again.position, rows_written=0, rows_removed=0, slice_number=None)
    with pytest.raises(UsageError, match=rf"no key that identifies its rows.*: cdc snapshot {notes}$"):
        pipeline.repair().run(notes)


def test_a_history_is_verified_as_of_the_position_and_repaired_from_there_on(pipeline: Pipeline, database: str) -> None:
    *_, name = pipeline.table_names()
    history = history_name(name)
    run_sql(database, "INSERT INTO parts VALUES (1, 'one'), (2, 'two'), (3, 'three')", "DELETE FROM parts WHERE id = 3")
    consume(pipeline)
    pipeline.slice_worker().slice_to_lake(name)
    lake = f"delta.`{pipeline.lake_url(history)}`"
    spark_session(pipeline).sql(f"UPDATE {lake} SET name = 'tampered' WHERE id = 2").collect()
    (verdict,) = pipeline.verification().verify([name])
    assert (verdict.comparison, verdict.history) == (
        compared(2, 2),
        compared(2, 2, Difference(id={"id": 2}, kind="different", columns=("name",))),
    )
    assert not verdict.is_equal
    repaired = pipeline.repair().run(name)
    assert (repaired.rows_written, repaired.rows_removed) == (1, 0)
    (verdict,) = pipeline.verification().verify([name])
    assert verdict.is_equal, verdict
    assert verdict.history == compared(2, 2)
    names = sorted((row["name"], row["_cdc_current"]) for row in lake_rows(pipeline, history))
    assert names == [("one", True), ("tampered", False), ("three", False), ("two", True)]


def test_a_row_that_is_there_twice_is_found_and_once_after_the_repair(pipeline: Pipeline, database: str) -> None:
    things, _, parts = pipeline.table_names()
    history = history_name(parts)
    run_sql(database, "INSERT INTO parts VALUES (1, 'one'), (2, 'two')")
    consume(pipeline)
    pipeline.slice_worker().slice_to_lake(parts)
    for name in (things, history):
        lake = f"delta.`{pipeline.lake_url(name)}`"
        spark_session(pipeline).sql(f"INSERT INTO {lake} SELECT * FROM {lake} WHERE id = 1").collect()
    doubled = Difference(id={"id": 1}, kind="doubled", columns=())
    of_things, of_parts = pipeline.verification().verify([things, parts])
    assert of_things.comparison == compared(9, 10, doubled)
    assert (of_parts.comparison, of_parts.history) == (compared(2, 2), compared(2, 3, doubled))
    assert [(each.rows_written, each.problem) for each in pipeline.repair().run_each([things, parts])] == [
        (1, None)
    ] * 2
    of_things, of_parts = pipeline.verification().verify([things, parts])
    assert of_things.comparison == compared(9, 9)
    assert (of_parts.comparison, of_parts.history) == (compared(2, 2), compared(2, 2))
    assert [row["id"] for row in lake_rows(pipeline, things)].count(1) == 1


def test_columns_that_the_source_dropped_keep_their_values_in_rows_that_are_repaired(
    pipeline: Pipeline, database: str
) -> None:
    """In the lake, where row 1 is wrong, and in its history, which lacks the period of row 2."""
    *_, name = pipeline.table_names()
    history = history_name(name)
    run_sql(database, "ALTER TABLE parts ADD size int", "INSERT INTO parts VALUES (1, 'one', 5), (2, 'two', 6)")
    consume(pipeline)
    run_sql(database, "ALTER TABLE parts DROP size", "INSERT INTO parts VALUES (3, 'three')")
    consume(pipeline)
    pipeline.slice_worker().slice_to_lake(name)
    lake, of_history = (f"delta.`{pipeline.lake_url(each)}`" for each in (name, history))
    for statement in (
        f"UPDATE {lake} SET name = 'tampered' WHERE id = 1",
        f"DELETE FROM {lake} WHERE id = 3",
        f"DELETE FROM {of_history} WHERE id = 2",
    ):
        spark_session(pipeline).sql(statement).collect()
    repaired = pipeline.repair().run(name)
    assert (repaired.rows_written, repaired.rows_removed) == (3, 0)
    (verdict,) = pipeline.verification().verify([name])
    assert verdict.is_equal, verdict
    sizes = {row["id"]: (row["name"], row["size"]) for row in lake_rows(pipeline, name)}
    assert sizes == {1: ("one", 5), 2: ("two", 6), 3: ("three", None)}
    periods = sorted(((row["id"], row["size"]) for row in lake_rows(pipeline, history)), key=str)
    assert periods == [(1, 5), (2, None), (3, None)]


def compared(source_rows: int, lake_rows: int, *differences: Difference) -> Comparison:
    return Comparison(
        source_rows=source_rows, lake_rows=lake_rows, differing_rows=len(differences), differences=differences
    )


class Killed(BaseException):
    """No handler of the code under test catches this one."""


def test_a_repair_killed_before_its_slice_is_registered_brings_no_deleted_row_back(
    pipeline: Pipeline, database: str
) -> None:
    *_, name = pipeline.table_names()
    run_sql(database, "INSERT INTO parts VALUES (1, 'one'), (2, 'two')")
    consume(pipeline)
    pipeline.slice_worker().slice_to_lake(name)
    spark_session(pipeline).sql(f"DELETE FROM delta.`{pipeline.lake_url(name)}`").collect()

    compared = Event()

    def delete_then_die(step: str, moment: Moment) -> None:
        if step == "verification_file.delete" and moment is Moment.AFTER:  # the rows are compared
            run_sql(database, "DELETE FROM parts WHERE id = 1")
            consume(pipeline)
            compared.set()
        if step == "cut_file.put" and moment is Moment.ACKNOWLEDGED and compared.is_set():
            raise Killed

    with pytest.raises(Killed):
        replace(pipeline, on_step=delete_then_die).repair().run(name)
    pipeline.slice_worker().slice_to_lake(name)
    assert [row["id"] for row in lake_rows(pipeline, name) if not row["_cdc_deleted"]] == []
    consume(pipeline)
    pipeline.slice_worker().slice_to_lake(name)
    (verdict,) = pipeline.verification().verify([name])
    assert verdict.is_equal, verdict
    assert [row["id"] for row in lake_rows(pipeline, name) if not row["_cdc_deleted"]] == [2]
    assert not pipeline.store.tables.table(name).under_repair
