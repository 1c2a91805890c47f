"""A column that pipeline.yml excludes reaches no slice, no staged file, no quarantine and no lake."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.metadata_store.states import QuarantineState, TableState
from snapshot.wiring import export_at
from tests.crash.world import World, apply_all, lake_tables, memory_lake, take_snapshot
from tests.support.delta_rows import seen
from tests.support.event_files import EventFolder
from tests.support.pipelines import consume, pipeline_settings, set_up_and_consume
from tests.support.postgres import fresh_store
from tests.support.streams import run_sql

SECRET = "top-secret"
CREATE = f"""
CREATE TABLE people (id int PRIMARY KEY, name text, ssn text, born date, secret_day date);
ALTER TABLE people ALTER ssn SET STORAGE EXTERNAL;
CREATE TABLE visits (place text, note text, amount int);
ALTER TABLE visits REPLICA IDENTITY FULL;
INSERT INTO people VALUES (1, 'one', repeat('{SECRET}', 400), '2001-01-01', '2001-02-03'), (2, 'two', '', NULL, NULL);
INSERT INTO visits VALUES ('here', '{SECRET}', 1), ('here', '{SECRET} too', 1)
"""
CHANGES = (
    f"INSERT INTO people VALUES (3, 'three', '{SECRET}', '2003-03-03', '-infinity')",
    "UPDATE people SET name = 'uno' WHERE id = 1",
    f"UPDATE people SET ssn = 'another {SECRET}' WHERE id = 2",
    "UPDATE people SET id = 30 WHERE id = 3",
    f"DELETE FROM visits WHERE note = '{SECRET} too'",
    f"INSERT INTO people VALUES (4, 'four', '{SECRET}', 'infinity')",
)
PEOPLE: dict[str, Any] = {"name": "public.people", "exclude_columns": ["ssn", "secret_day"]}
VISITS: dict[str, Any] = {"name": "public.visits", "exclude_columns": ["note"]}


@pytest.fixture
def world(postgres: PostgresServer, database: str, tmp_path: Path) -> Iterator[World]:
    run_sql(database, CREATE)
    settings = pipeline_settings(tmp_path, database, [PEOPLE, VISITS])
    with fresh_store(postgres) as store_url:
        yield World(settings=settings, source_url=database, store_url=store_url)


def in_lake(world: World) -> list[list[dict[str, Any]]]:
    with world.process() as pipeline:
        lake = memory_lake(pipeline)
        return [sorted(seen(lake.rows(table)), key=str) for table in lake_tables(pipeline)]


def test_excluded_columns_of_a_database_stay_there(world: World, tmp_path: Path) -> None:
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        take_snapshot(pipeline, world.tables)
    run_sql(world.source_url, *CHANGES)
    with world.process() as pipeline:
        consume(pipeline)
        apply_all(pipeline)
        waiting = pipeline.store.quarantine.entries(state=QuarantineState.WAITING)
        verdicts = pipeline.verification().verify(world.tables)
    people, visits = in_lake(world)
    assert [set(row) for row in people] == [{"id", "name", "born"}] * 3
    assert [(row["id"], row["name"]) for row in people] == [(1, "uno"), (2, "two"), (30, "three")]
    assert visits == [{"place": "here", "amount": 1}]
    assert [(each.column, each.payload["name"]) for each in waiting] == [("born", "four")]
    assert not {"ssn", "secret_day"} & set(waiting[0].payload)
    assert [(found.rows_withheld, found.columns_missing) for found in verdicts] == [(1, ()), (0, ())]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_a_partial_row_stays_partial_by_its_other_columns_alone(world: World) -> None:
    """The large excluded text is left out of an update that does not change it; the row is whole without it."""
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        take_snapshot(pipeline, world.tables)
        run_sql(world.source_url, "UPDATE people SET name = 'uno' WHERE id = 1")
        consume(pipeline)
        table = pipeline.store.tables.table(pipeline.table_names()[0])
        (found,) = pipeline.store.slices.slices(table.table_id, 1, 10)
    assert (found.rows, found.partial_rows) == (1, 0)


@pytest.mark.parametrize(
    ("names", "found"), [(["snn"], "'snn', which is not in the table"), (["id"], "'id', which is in its id")]
)
def test_a_misspelt_column_and_one_of_the_id_are_refused(world: World, names: list[str], found: str) -> None:
    people = world.settings.tables[0].model_copy(update={"exclude_columns": tuple(names)})
    world = replace(world, settings=world.settings.model_copy(update={"tables": (people, world.settings.tables[1])}))
    with world.process() as pipeline:
        refused = pipeline.source_setup().set_up().refused
    assert [str(name) for name in refused] == [people.name]
    assert found in str(refused[people.table])


def test_a_column_that_comes_back_or_goes_needs_a_new_snapshot(world: World) -> None:
    """Else it would have the values of later changes alone, or keep those of earlier ones."""
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        take_snapshot(pipeline, world.tables)
    people, visits = world.settings.tables
    for excluded, names in (((), {"ssn", "secret_day"}), (("born",), {"ssn", "secret_day"})):
        table = people.model_copy(update={"exclude_columns": excluded})
        world = replace(world, settings=world.settings.model_copy(update={"tables": (table, visits)}))
        with world.process() as pipeline:
            consume(pipeline)
            assert pipeline.store.tables.table(table.table).state is TableState.STALE
            pipeline.source_setup().set_up(begin_again=[table.table])
            take_snapshot(pipeline, [table.table])
            consume(pipeline)
            apply_all(pipeline)
        assert {frozenset(row) for row in in_lake(world)[0]} == {
            frozenset({"id", "name", "born", *names} - {*excluded})
        }


def test_a_list_that_is_set_back_before_its_snapshot_stops_no_other_table(world: World) -> None:
    """The snapshot began under the other list, and failed: the store has that list, and the lake has neither."""
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        take_snapshot(pipeline, world.tables)
    people, visits = world.settings.tables
    other = people.model_copy(update={"exclude_columns": ("born",)})
    changed = replace(world, settings=world.settings.model_copy(update={"tables": (other, visits)}))
    with changed.process() as pipeline:
        consume(pipeline)
        pipeline.source_setup().set_up(begin_again=[people.table])
    run_sql(world.source_url, "INSERT INTO visits VALUES ('there', 2)")
    with world.process() as pipeline:
        consume(pipeline)
        pipeline.slice_worker().slice_to_lake(visits.table)
        assert "exclude_columns of" in (pipeline.store.tables.table(people.table).state_reason or "")
        assert {row["place"] for row in in_lake(world)[1]} == {"here", "there"}
        pipeline.source_setup().set_up(begin_again=[people.table])
        take_snapshot(pipeline, [people.table])
    assert {frozenset(row) for row in in_lake(world)[0]} == {frozenset({"id", "name", "born"})}


@pytest.mark.parametrize(
    ("changes", "as_text"),
    [((), ()), (("ALTER TABLE people ALTER id TYPE bigint",), ()), ((), ("number",))],
    ids=["alone", "with the type of another", "read as text as before"],
)
def test_an_excluded_column_that_is_renamed_stops_the_table_until_the_list_is_corrected(
    world: World, changes: tuple[str, ...], as_text: tuple[str, ...]
) -> None:
    """Under its new name no setting keeps its values out of the lake, neither by events nor by a new snapshot."""
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        take_snapshot(pipeline, world.tables)
    people = world.settings.tables[0].model_copy(update={"as_text": as_text})
    world = replace(world, settings=world.settings.model_copy(update={"tables": (people, world.settings.tables[1])}))
    run_sql(world.source_url, "ALTER TABLE people RENAME ssn TO number", *changes, CHANGES[1])
    with world.process() as pipeline:
        consume(pipeline)
        found = pipeline.store.tables.table(people.table)
    assert "names 'ssn', which is not in the table" in (found.state_reason or "")
    assert not found.snapshot_wanted


def test_an_excluded_column_may_be_dropped(world: World) -> None:
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        take_snapshot(pipeline, world.tables)
    run_sql(world.source_url, "ALTER TABLE people DROP COLUMN ssn", "INSERT INTO people VALUES (5, 'five')")
    with world.process() as pipeline:
        consume(pipeline)
        apply_all(pipeline)
    assert [row["id"] for row in in_lake(world)[0]] == [1, 2, 5]


def line(id_: int, number: object, kind: str = "int32") -> dict[str, Any]:
    types = {"id": "int32", "n": kind, "ssn": "string"}
    fields = [{"field": name, "type": type_, "optional": True} for name, type_ in types.items()]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    source = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "t", "lsn": id_, "txId": id_}
    after = {"id": id_, "n": number, "ssn": SECRET}
    return {"schema": schema, "payload": {"op": "c", "before": None, "after": after, "source": source | {"ts_ms": 1}}}


def test_excluded_columns_of_debezium_s_events_stay_out_of_slices_also_when_an_event_is_replayed(
    tmp_path: Path, store_url: str
) -> None:
    """The events have all columns, and a quarantined line is kept whole."""
    table = {"name": "public.t", "id": ["id"], "exclude_columns": ["ssn"]}
    events = EventFolder(folder=tmp_path, store_url=store_url, tables=(table,))
    events.write("0/a.jsonl", line(1, 1), line(2, "no number"), line(3, 3))
    events.consume()
    assert events.rows("public.t") == [{"id": 1, "n": 1}, {"id": 3, "n": 3}]
    run_sql(store_url, "UPDATE cdc.quarantine SET payload = replace(payload::text, '\\\"no number\\\"', '2')::json")
    with events.opened() as pipeline:
        (outcome,) = pipeline.replay().run(pipeline.store.quarantine.entries())
    assert outcome.state is QuarantineState.REPLAYED, outcome.why
    assert events.rows("public.t") == [{"id": 1, "n": 1}, {"id": 2, "n": 2}, {"id": 3, "n": 3}]


def test_a_broken_row_of_an_export_is_quarantined_without_its_excluded_columns(world: World, tmp_path: Path) -> None:
    """Nobody knows which part of such a row is of which column."""
    whole = f'{{"id": 1, "name": "one", "ssn": "{SECRET}", "born": null, "secret_day": null}}\n'
    exports = {
        "a.csv": f"id,name,ssn,born,secret_day\n1,one,{SECRET},,\n2,two,{SECRET},,,one too many\n",
        "a.jsonl": f'{whole}{{"ssn": "{SECRET}", "id": 2\n',
    }
    with world.process() as pipeline:
        pipeline.source_setup().set_up()
        for name, content in exports.items():
            (tmp_path / name).write_text(content)
            as_of = world.query("SELECT pg_current_wal_lsn()::text")[0][0]
            export = export_at(str(tmp_path / name), as_of)
            (taken,) = take_snapshot(pipeline, [world.settings.tables[0].table], export=export)
            (broken,) = pipeline.store.quarantine.entries(state=QuarantineState.WAITING)
            assert (taken.state, taken.rows) == ("published", 1)
            assert f"{name} " in broken.reason
            assert SECRET not in f"{broken.reason} {broken.payload}"
