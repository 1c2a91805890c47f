"""A table that the stream no longer tells whole stops alone, says why, and begins again by a new snapshot."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.consume.stream_to_slices import stream_to_slices_until_idle
from cdc_pipeline.errors import SourceError, StreamMoved, TableStale
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.postgres.catalogue import canonical_type
from cdc_pipeline.sources.protocol import TableEvents
from cdc_pipeline.sources.table_events import events_or_stale
from tests.crash.world import World
from tests.support.guarded import (
    begin_again,
    go_on,
    guarded_world,
    in_lake,
    in_source,
    name_of,
    states,
    stopped_tables,
    world_of,
)
from tests.support.pipelines import pipeline_settings
from tests.support.postgres import fresh_store
from tests.support.streams import postgres_of, run_sql

NEIGHBOUR = "INSERT INTO customers VALUES (4, 'four')"
DROP = "DROP TABLE orders"
OTHER = ("CREATE TABLE orders (id text PRIMARY KEY, amount int)", "INSERT INTO orders VALUES ('a', 7), ('b', 8)")
SAME = ("CREATE TABLE orders (id int PRIMARY KEY, note text)", "INSERT INTO orders VALUES (2, 'zwei')")
UNPUBLISH = 'ALTER PUBLICATION "{name}" DROP TABLE orders'
PUBLISH = 'ALTER PUBLICATION "{name}" ADD TABLE orders'
UNSEEN = "INSERT INTO orders VALUES (9, 'unseen')"
FILTER = f"{UNPUBLISH}; {PUBLISH} WHERE (id > 100)"
COLUMNS = f"{UNPUBLISH}; {PUBLISH} (id)"
WHOLE = f"{UNPUBLISH}; {PUBLISH}"
OTHER_IDENTITY = (
    "UPDATE orders SET note = 'n' || id",
    "ALTER TABLE orders ALTER note SET NOT NULL",
    "CREATE UNIQUE INDEX by_note ON orders (note)",
    "ALTER TABLE orders REPLICA IDENTITY USING INDEX by_note",
    "DELETE FROM orders WHERE id = 1",
)
DAMAGES = {
    "dropped": ((DROP,), SAME, "was dropped from the source; expected oid"),
    "made again": ((DROP, *SAME), (), "was made again and has oid"),
    "made again with other columns": ((DROP, *OTHER), (), "was made again and has oid"),
    "renamed": (
        ("ALTER TABLE orders RENAME TO sold",),
        ("ALTER TABLE sold RENAME TO orders",),
        "is now called {table.schema}.sold; expected oid",
    ),
    "taken out": ((UNPUBLISH, UNSEEN), (), "is not in the publication: changes of it may be missing"),
    "taken out and put back": ((UNPUBLISH, UNSEEN, PUBLISH), (), "was published otherwise in between"),
    "only some rows": ((FILTER, UNSEEN), (WHOLE,), "was published otherwise in between"),
    "only some columns": ((COLUMNS, UNSEEN, WHOLE), (), "was published otherwise in between"),
    "another replica identity": (
        OTHER_IDENTITY,
        ("ALTER TABLE orders REPLICA IDENTITY DEFAULT",),
        "deletes of {table} do not carry id; expected an id within the table's replica identity",
    ),
    "another replica identity for a while": (
        (*OTHER_IDENTITY, "ALTER TABLE orders REPLICA IDENTITY DEFAULT"),
        (),
        "changes of {table} came without id; expected an id within the table's replica identity",
    ),
    "another key": (
        ("ALTER TABLE orders DROP CONSTRAINT orders_pkey", "ALTER TABLE orders ADD PRIMARY KEY (id, note)"),
        (),
        "the id of {table} is now (id, note); expected (id), by which the lake knows its rows",
    ),
    "no key any more": (
        ("ALTER TABLE orders DROP CONSTRAINT orders_pkey",),
        ("ALTER TABLE orders ADD PRIMARY KEY (id)",),
        "{table} has no id any more; expected (id), by which the lake knows its rows",
    ),
}
SCHEMAS = {kind: f"damage_{number}" for number, kind in enumerate(DAMAGES)}


@pytest.fixture
def world(postgres: PostgresServer, database: str, tmp_path: Path) -> Iterator[World]:
    with fresh_store(postgres) as store_url, guarded_world(tmp_path, database, store_url) as world:
        yield world


def damage(world: World, statements: tuple[str, ...]) -> None:
    name = postgres_of(world.settings).publication
    run_sql(world.source_url, *(statement.format(name=name) for statement in statements))


def test_damaged_tables_stop_alone_and_begin_again_by_a_snapshot(
    postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    """Each in a schema of its own: all are damaged at once, and one pipeline follows them."""
    with fresh_store(postgres) as store_url:
        world = damaged_world(tmp_path, database, store_url)
        frozen = each_in_lake(world)
        damage_each(world, {kind: statements for kind, (statements, _, _) in DAMAGES.items()})
        run_sql(database, NEIGHBOUR)
        stopped = reasons(world)
        wanted = {kind: words.format(table=orders_of(world, kind)) for kind, (_, _, words) in DAMAGES.items()}
        assert {kind: words if words in stopped[kind] else stopped[kind] for kind, words in wanted.items()} == wanted
        assert [kind for kind in DAMAGES if "cdc snapshot" not in stopped[kind]] == []
        assert table_states(world) == {"customers": "live"} | dict.fromkeys(SCHEMAS.values(), "stale")
        assert reasons(world) == stopped
        assert each_in_lake(world) == frozen
        assert in_lake(world, "customers") == in_source(world, "customers")
        damage_each(world, {kind: mend for kind, (_, mend, _) in DAMAGES.items()})
        assert list(reasons(world)) == list(DAMAGES)
        begin_again(world, [orders_of(world, kind) for kind in DAMAGES])
        damage_each(world, dict.fromkeys(DAMAGES, ("UPDATE orders SET id = id",)))
        run_sql(database, NEIGHBOUR.replace("4", "5"))
        assert go_on(world) == {}
        assert each_in_lake(world) == {kind: in_source(world, f"{schema}.orders") for kind, schema in SCHEMAS.items()}
        assert in_lake(world, "customers") == in_source(world, "customers")


def damaged_world(folder: Path, source_url: str, store_url: str) -> World:
    """Of each kind of damage, a table in the lake, of which one more change is applied; and their neighbour."""
    run_sql(
        source_url, "CREATE TABLE customers (id int PRIMARY KEY, note text)", "INSERT INTO customers VALUES (1, 'a')"
    )
    for schema in SCHEMAS.values():
        run_sql(
            source_url,
            f"CREATE SCHEMA {schema}",
            f"CREATE TABLE {schema}.orders (id int PRIMARY KEY, note text)",
            f"INSERT INTO {schema}.orders VALUES (1, 'one'), (2, 'two')",
        )
    names = ["public.customers", *(f"{schema}.orders" for schema in SCHEMAS.values())]
    world = world_of(folder, source_url, store_url, [{"name": name} for name in names])
    begin_again(world)
    damage_each(world, dict.fromkeys(DAMAGES, ("INSERT INTO orders VALUES (3, 'three')",)))
    assert go_on(world) == {}
    return world


def damage_each(world: World, statements: Mapping[str, tuple[str, ...]]) -> None:
    name = postgres_of(world.settings).publication
    for kind, of_kind in statements.items():
        url = f"{world.source_url}?options=-csearch_path%3D{SCHEMAS[kind]}"
        run_sql(url, *(statement.format(name=name) for statement in of_kind))


def orders_of(world: World, kind: str) -> TableName:
    return replace(name_of(world, "orders"), schema=SCHEMAS[kind])


def reasons(world: World) -> dict[str, str]:
    """Kind of damage -> why its table stopped. No neighbour stops."""
    stopped = {name.schema: reason for name, reason in stopped_tables(world).items()}
    assert set(stopped) <= set(SCHEMAS.values())
    return {kind: stopped[schema] for kind, schema in SCHEMAS.items() if schema in stopped}


def each_in_lake(world: World) -> dict[str, list[dict[str, Any]]]:
    return {kind: in_lake(world, orders_of(world, kind)) for kind in DAMAGES}


def table_states(world: World) -> dict[str, str]:
    """By schema, or of the neighbour by name."""
    found = world.store_query("SELECT schema_name, table_name, state FROM cdc.source_table")
    return {table if schema == "public" else schema: state for schema, table, state in found}


def test_a_table_without_a_key_whose_old_rows_come_in_part_stops_alone(
    postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    run_sql(
        database,
        "CREATE TABLE customers (id int PRIMARY KEY, note text)",
        "CREATE TABLE loose (id int NOT NULL, note text)",
        "CREATE UNIQUE INDEX by_id ON loose (id)",
        "ALTER TABLE loose REPLICA IDENTITY FULL",
        "INSERT INTO loose VALUES (1, 'one')",
    )
    tables = [{"name": "public.customers"}, {"name": "public.loose"}]
    with fresh_store(postgres) as store_url:
        settings = pipeline_settings(tmp_path, database, tables)
        world = World(settings=settings, source_url=database, store_url=store_url)
        begin_again(world)
        run_sql(
            database,
            "ALTER TABLE loose REPLICA IDENTITY USING INDEX by_id",
            "DELETE FROM loose",
            "ALTER TABLE loose REPLICA IDENTITY FULL",
            NEIGHBOUR,
        )
        stopped = go_on(world)
        assert list(stopped) == ["loose"]
        assert "which has no key, came without the whole old row" in stopped["loose"]
        assert in_lake(world, "customers") == in_source(world, "customers")
        begin_again(world, [name_of(world, "loose")])
        assert go_on(world) == {}


def test_events_of_one_table_that_cannot_be_read_make_it_stale_whatever_fails() -> None:
    def fails() -> TableEvents:
        raise ZeroDivisionError

    with pytest.raises(TableStale, match=r"events of shop\.public\.t: cannot be read: ZeroDivisionError"):
        events_or_stale(fails, TableName.parse("shop.public.t"))


def test_a_type_that_the_catalogue_does_not_show_refuses_its_table() -> None:
    with pytest.raises(SourceError, match="the catalogue has no type with the oid 7"):
        canonical_type({}, 7, -1)


def test_a_stale_table_ends_its_command_with_one_and_is_not_tried_again() -> None:
    assert (TableStale.exit_code, TableStale.retryable) == (1, False)


def test_what_is_not_mended_is_refused_by_name_and_its_neighbour_begins_again(world: World) -> None:
    damage(world, (DROP,))
    go_on(world)
    before = states(world)
    with world.process() as pipeline:
        refused = pipeline.source_setup().set_up(begin_again=pipeline.table_names()).refused
    assert {name.table: "the source has no table" in str(error) for name, error in refused.items()} == {"orders": True}
    assert states(world) == before


def test_a_publication_that_goes_while_it_is_read_registers_nothing_more(world: World) -> None:
    with world.process() as pipeline:
        before = pipeline.store.lake_positions.last_boundary(pipeline.settings.name)
        with pipeline.consumer_runs().open() as consumer:
            damage(world, ('DROP PUBLICATION "{name}"', UNSEEN))
            with pytest.raises(StreamMoved, match="otherwise than when its stream was opened"):
                stream_to_slices_until_idle(consumer)
        assert pipeline.store.lake_positions.last_boundary(pipeline.settings.name) == before
    stopped = go_on(world)
    assert {table: "is not in the publication" in why for table, why in stopped.items()} == {
        "orders": True,
        "customers": True,
    }
    begin_again(world)
    assert go_on(world) == {}
    assert in_lake(world, "orders") == in_source(world, "orders")


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_another_key_stops_its_table_also_while_a_consumer_runs(world: World, identity: str) -> None:
    damage(world, (f"ALTER TABLE orders REPLICA IDENTITY {identity}",))
    frozen = in_lake(world, "orders")
    statements, _, words = DAMAGES["another key"]
    with world.process() as pipeline, pipeline.consumer_runs().open() as consumer:
        damage(world, (*statements, "INSERT INTO orders VALUES (1, 'twin')", "DELETE FROM orders WHERE note = 'one'"))
        with pytest.raises(StreamMoved):
            stream_to_slices_until_idle(consumer)
    stopped = go_on(world)
    assert list(stopped) == ["orders"]
    assert words.format(table=name_of(world, "orders")) in stopped["orders"]
    assert in_lake(world, "orders") == frozen


def test_a_snapshot_under_way_is_abandoned_when_its_table_is_made_again(world: World) -> None:
    with world.process() as pipeline:
        table_id = pipeline.store.tables.table(name_of(world, "orders")).table_id
        pipeline.store.stale_tables.mark(table_id, "damaged")
        pipeline.source_setup().set_up(begin_again=[name_of(world, "orders")])
        assert pipeline.store.tables.table_by_id(table_id).published_as is not None
        pipeline.store.stale_tables.mark(table_id, "damaged again")
        assert pipeline.store.tables.table_by_id(table_id).published_as is None
        assert pipeline.store.snapshots.active_snapshot(table_id) is None
