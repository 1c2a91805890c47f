"""A pipeline of two small tables over a fast lake, whose source is going to be damaged."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cdc_pipeline.errors import TableStale
from cdc_pipeline.record import TableName
from tests.crash.world import World, memory_lake, take_snapshot
from tests.support.command_line import CommandLine
from tests.support.command_server import CommandServer
from tests.support.pipelines import consume, pipeline_settings
from tests.support.streams import database_of, run_sql

CREATE = (
    "CREATE TABLE orders (id int PRIMARY KEY, note text)",
    "CREATE TABLE customers (id int PRIMARY KEY, note text)",
    "INSERT INTO orders VALUES (1, 'one'), (2, 'two')",
    "INSERT INTO customers VALUES (1, 'one')",
)
BOTH = ({"name": "public.orders"}, {"name": "public.customers"})


@contextmanager
def guarded_world(folder: Path, source_url: str, store_url: str) -> Iterator[World]:
    """Both tables are in the lake, and one more change of each is applied."""
    run_sql(source_url, *CREATE)
    world = world_of(folder, source_url, store_url)
    begin_again(world)
    run_sql(source_url, "INSERT INTO orders VALUES (3, 'three')", "INSERT INTO customers VALUES (3, 'three')")
    assert go_on(world) == {}
    yield world


def world_of(folder: Path, source_url: str, store_url: str, tables: Sequence[dict[str, Any]] = BOTH) -> World:
    settings = pipeline_settings(folder, source_url, list(tables))
    return World(settings=settings, source_url=source_url, store_url=store_url)


def command_line(world: World, server: CommandServer) -> CommandLine:
    """`cdc` over the pipeline's servers, in its folder."""
    tables = tuple(f"{table.schema}.{table.table}" for table in world.tables)
    return CommandLine(
        folder=world.settings.folder,
        source_url=world.source_url,
        store_url=world.store_url,
        tables=tables,
        server=server,
    )


def name_of(world: World, table: str) -> TableName:
    return TableName(database=database_of(world.source_url), schema="public", table=table)


def begin_again(world: World, tables: Sequence[TableName] = ()) -> None:
    """What `cdc snapshot` does."""
    with world.process() as pipeline:
        chosen = tuple(tables) or pipeline.table_names()
        pipeline.source_setup().set_up(begin_again=chosen)
        take_snapshot(pipeline, chosen)


def go_on(world: World) -> dict[str, str]:
    """Everything that the source holds is registered and applied; table -> why it could not be."""
    return {table.table: reason for table, reason in stopped_tables(world).items()}


def stopped_tables(world: World) -> dict[TableName, str]:
    """The same, for a pipeline in which tables of several schemas have one name."""
    stopped = {}
    with world.process() as pipeline:
        consume(pipeline)
        for table in pipeline.table_names():
            try:
                pipeline.slice_worker().slice_to_lake(table)
            except TableStale as error:
                stopped[table] = str(error)
    return stopped


def in_lake(world: World, table: str | TableName) -> list[dict[str, Any]]:
    """Rows as readers see them, by id."""
    name = name_of(world, table) if isinstance(table, str) else table
    with world.process() as pipeline:
        rows = memory_lake(pipeline).rows(pipeline.lake_table(name))
    visible = [{key: row[key] for key in row if not key.startswith("_cdc_")} for row in rows if not row["_cdc_deleted"]]
    return sorted(visible, key=lambda row: str(row["id"]))


def in_source(world: World, table: str) -> list[dict[str, Any]]:
    rows = world.query(f'SELECT to_jsonb(t) FROM {table} AS t ORDER BY id::text COLLATE "C"')
    return [row for (row,) in rows]


def states(world: World) -> dict[str, tuple[str, str | None]]:
    return {
        table: (state, reason)
        for table, state, reason in world.store_query("SELECT table_name, state, state_reason FROM cdc.source_table")
    }
