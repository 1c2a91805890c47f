"""Replayed after the fix, the lake equals that of a run in which everything fitted at once."""

from collections.abc import Iterator
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.settings.installation.endpoints import Endpoints
from cdc_pipeline.wiring import Pipeline, open_pipeline
from tests.crash.world import apply_all, lake_tables, make_lake, memory_lake, take_snapshot
from tests.support.pipelines import consume, pipeline_settings, set_up_and_consume
from tests.support.postgres import fresh_store
from tests.support.streams import run_sql

CREATE = """
CREATE TABLE {0} (id int PRIMARY KEY, name text, body text, ends date);
ALTER TABLE {0} ALTER body SET STORAGE EXTERNAL;
CREATE TABLE {0}_bag (name text, ends date);
ALTER TABLE {0}_bag REPLICA IDENTITY FULL
"""
NEVER, AFTER_THE_FIX = "infinity", "9999-12-31"
MEND = f"UPDATE cdc.quarantine SET payload = replace(payload::text, '{NEVER}', '{AFTER_THE_FIX}')::json"
LARGE = "INSERT INTO {table} VALUES ({id}, 'one', repeat('x', 3000), '{never}')"
SMALL = "INSERT INTO {table} VALUES ({id}, 'one', 'x', '{never}')"
Rows = list[dict[str, Any]]


@pytest.fixture
def pipeline(postgres: PostgresServer, database: str, tmp_path: Path) -> Iterator[Pipeline]:
    """Two tables and two bags that are written to alike, but that what does not fit in `things` does in `clean`."""
    run_sql(database, *map(CREATE.format, ("things", "clean")))
    with fresh_store(postgres) as store_url:
        settings = pipeline_settings(
            tmp_path,
            database,
            [{"name": f"public.{name}"} for name in ("things", "clean", "things_bag", "clean_bag")],
            source={"stream_partitions": 2},
            slice_length="1d",
        )
        endpoints = Endpoints(
            source_url=database, metadata_store_url=store_url, airflow_database_url="", spark_url="", airflow_url=""
        )
        with open_pipeline(settings, endpoints, make_lake=make_lake) as pipeline:
            yield pipeline


def write(pipeline: Pipeline, *statements: str) -> None:
    for statement in statements:
        run_sql(pipeline.endpoints.source_url, statement.format(table="things", never=NEVER))
        run_sql(pipeline.endpoints.source_url, statement.format(table="clean", never=AFTER_THE_FIX))


def begin(pipeline: Pipeline) -> None:
    set_up_and_consume(pipeline)
    take_snapshot(pipeline, pipeline.table_names())


def go_on(pipeline: Pipeline, *statements: str) -> None:
    write(pipeline, *statements)
    consume(pipeline)
    apply_all(pipeline)


def mend_and_replay(pipeline: Pipeline) -> int:
    """How many events came back; none is left."""
    run_sql(pipeline.endpoints.metadata_store_url, MEND)
    outcomes = pipeline.replay().run(pipeline.store.quarantine.entries(state=QuarantineState.WAITING))
    assert {outcome.state for outcome in outcomes} == {QuarantineState.REPLAYED}, outcomes
    apply_all(pipeline)
    return len(outcomes)


def visible_rows(pipeline: Pipeline) -> list[Rows]:
    """Of each table of the lake, without our own columns."""
    return [
        sorted(
            (
                {name: value for name, value in row.items() if not name.startswith("_cdc_")}
                for row in memory_lake(pipeline).rows(table)
                if not row.get("_cdc_deleted")
            ),
            key=lambda row: str(sorted(row.items())),
        )
        for table in lake_tables(pipeline)
    ]


def is_equal(pipeline: Pipeline) -> bool:
    things, clean, bag, clean_bag = visible_rows(pipeline)
    assert things == clean
    assert bag == clean_bag
    return True


WHERE = "WHERE id = {id}"
HISTORIES = {
    "nothing": (LARGE,),
    "a newer value beside a large text": (LARGE, f"UPDATE {{table}} SET ends = '2024-01-01' {WHERE}"),
    "newer values of every column": (SMALL, f"UPDATE {{table}} SET name = 'uno', ends = '2024-01-01' {WHERE}"),
    "a delete": (LARGE, f"DELETE FROM {{table}} {WHERE}"),
    "a delete and an insert": (
        LARGE,
        f"DELETE FROM {{table}} {WHERE}",
        "INSERT INTO {table} VALUES ({id}, 'new', 'b', NULL)",
    ),
    "a key change": (SMALL, f"UPDATE {{table}} SET id = {{id}} + 100, ends = NULL {WHERE}"),
    "an update that does not fit either": (LARGE, f"UPDATE {{table}} SET name = 'uno' {WHERE}"),
    "a key change that does not fit either": (
        LARGE,
        f"UPDATE {{table}} SET name = 'uno' {WHERE}",
        f"UPDATE {{table}} SET id = {{id}} + 100 {WHERE}",
    ),
    "a newer value that fits": (
        "INSERT INTO {table} VALUES ({id}, 'one', 'x', NULL)",
        f"UPDATE {{table}} SET name = 'never', ends = '{{never}}' {WHERE}",
        f"UPDATE {{table}} SET name = 'last', ends = NULL {WHERE}",
    ),
}
"""Each of an id of its own, one statement per round of consuming and applying."""


def rounds_of_histories() -> Iterator[list[str]]:
    for number in range(max(map(len, HISTORIES.values()))):
        yield [
            history[number].replace("{id}", str(id_))
            for id_, history in enumerate(HISTORIES.values())
            if number < len(history)
        ]


def test_what_did_not_fit_comes_back_whatever_came_after_it(pipeline: Pipeline) -> None:
    begin(pipeline)
    for statements in rounds_of_histories():
        go_on(pipeline, *statements)
    assert mend_and_replay(pipeline) == 12
    assert is_equal(pipeline)
    assert replays_nothing(pipeline)


def test_a_truncate_empties_the_table_of_what_comes_back_too(pipeline: Pipeline) -> None:
    begin(pipeline)
    go_on(pipeline, SMALL.replace("{id}", "1"))
    go_on(pipeline, "TRUNCATE {table}", SMALL.replace("{id}", "2"))
    assert mend_and_replay(pipeline) == 2
    assert is_equal(pipeline)


def replays_nothing(pipeline: Pipeline) -> bool:
    before = visible_rows(pipeline)
    assert pipeline.replay().run(pipeline.store.quarantine.entries(state=QuarantineState.WAITING)) == ()
    apply_all(pipeline)
    return visible_rows(pipeline) == before


def test_a_delete_that_waits_beside_the_replayed_event_still_wins(pipeline: Pipeline) -> None:
    begin(pipeline)
    go_on(pipeline, LARGE.replace("{id}", "1"))
    write(pipeline, "DELETE FROM {table}")
    consume(pipeline)
    mend_and_replay(pipeline)
    assert is_equal(pipeline)


def test_rows_of_a_snapshot_come_back_as_of_its_cutoff(pipeline: Pipeline) -> None:
    write(pipeline, *(f"INSERT INTO {{table}} VALUES ({number}, 'n', 'b', '{{never}}')" for number in range(1, 4)))
    write(pipeline, "INSERT INTO {table}_bag VALUES ('twin', '{never}'), ('twin', '{never}'), ('fits', NULL)")
    begin(pipeline)
    kept = pipeline.store.quarantine.entries(state=QuarantineState.WAITING)
    assert len(kept) == 5
    go_on(
        pipeline,
        "UPDATE {table} SET ends = NULL WHERE id = 1",
        "DELETE FROM {table} WHERE id = 2",
        "DELETE FROM {table}_bag WHERE name = 'fits'",
    )
    assert mend_and_replay(pipeline) == 5
    assert is_equal(pipeline)


def test_events_of_a_keyless_table_come_back_as_often_as_they_were(pipeline: Pipeline) -> None:
    begin(pipeline)
    go_on(pipeline, "INSERT INTO {table}_bag VALUES ('a', '{never}'), ('a', '{never}'), ('b', '{never}'), ('c', NULL)")
    go_on(pipeline, "UPDATE {table}_bag SET ends = NULL WHERE name = 'b'", "UPDATE {table}_bag SET name = 'd'")
    assert mend_and_replay(pipeline) >= 4
    assert is_equal(pipeline)


SWAPPED = ("RENAME name TO was", "RENAME body TO name", "RENAME was TO body")
CHANGES = {
    "names are exchanged": SWAPPED,
    "a name is used again": ("DROP COLUMN body", "ADD COLUMN body text"),
    "a name is used again with another type": ("DROP COLUMN body", "ADD COLUMN body int"),
    "a column is renamed": ("RENAME body TO text",),
}


@pytest.mark.parametrize("of_snapshot", [False, True], ids=["event", "row of a snapshot"])
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_value_comes_back_into_its_own_column_whatever_the_columns_are_called_by_now(
    pipeline: Pipeline, changes: tuple[str, ...], *, of_snapshot: bool
) -> None:
    if of_snapshot:
        write(pipeline, SMALL.replace("{id}", "1"))
    begin(pipeline)
    if not of_snapshot:
        go_on(pipeline, SMALL.replace("{id}", "1"))
    for change in changes:
        go_on(pipeline, f"ALTER TABLE {{table}} {change}")
    go_on(pipeline, "INSERT INTO {table} (id, ends) VALUES (2, '{never}')", "INSERT INTO {table} (id) VALUES (3)")
    assert mend_and_replay(pipeline) == 2
    assert is_equal(pipeline)


def test_rows_of_a_keyless_table_come_back_under_names_that_were_exchanged(pipeline: Pipeline) -> None:
    begin(pipeline)
    go_on(pipeline, "ALTER TABLE {table}_bag ADD COLUMN body text")
    go_on(pipeline, "INSERT INTO {table}_bag VALUES ('a', '{never}', 'x'), ('a', '{never}', 'x'), ('fits', NULL, 'y')")
    for change in SWAPPED:
        go_on(pipeline, f"ALTER TABLE {{table}}_bag {change}")
    go_on(pipeline, "DELETE FROM {table}_bag WHERE body = 'fits'", "INSERT INTO {table}_bag VALUES ('n', NULL, 'b')")
    assert mend_and_replay(pipeline) == 2
    assert is_equal(pipeline)


def test_events_of_a_table_that_is_no_longer_listed_wait_on(pipeline: Pipeline) -> None:
    begin(pipeline)
    go_on(pipeline, SMALL.replace("{id}", "1"))
    others = pipeline.settings.model_copy(update={"tables": pipeline.settings.tables[1:]})
    (outcome,) = changed(pipeline, settings=others).replay().run(pipeline.store.quarantine.entries())
    assert outcome.state is QuarantineState.WAITING
    assert outcome.why.startswith("pipeline.yml does not list ")
