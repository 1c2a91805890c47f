"""A table changes its columns, types or partitions, and the lake equals the source again without anybody's help."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg2
import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.record import TableName
from cdc_pipeline.wiring import Pipeline
from snapshot.wiring import snapshot_runs
from tests.crash.world import World, memory_lake
from tests.support.guarded import begin_again, stopped_tables
from tests.support.pipelines import pipeline_settings
from tests.support.postgres import fresh_database, fresh_store
from tests.support.shape_changes import CHANGES, CREATE, RETAKEN, Change
from tests.support.streams import database_of, run_sql

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one change. Rows are those of lake and source, after the change was answered and at the end.

    `reason`: why the table was stopped, if it was.
    """

    reason: str | None
    snapshots: int
    answered: tuple[list[Row], list[Row]]
    at_the_end: tuple[list[Row], list[Row]]
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """The table of one change, in a schema of its own. All changes of a world are followed by one pipeline."""

    world: World
    schema: str
    change: Change

    @property
    def name(self) -> TableName:
        return TableName(database=database_of(self.world.source_url), schema=self.schema, table=self.change.table)

    def run(self, *statements: str) -> None:
        run_sql(f"{self.world.source_url}?options=-csearch_path%3D{self.schema}", *statements)

    def names(self, statement: str) -> set[str]:
        return {name for (name,) in self.world.query(statement.format(f"'{self.schema}.{self.change.table}'"))}

    def write(self, number: int) -> None:
        """Inserts, moves and deletes rows of the table as it is now; leaves a partition alone that is gone."""
        if self.change.table == "customers":
            partitions = self.names(
                "SELECT relname FROM pg_class JOIN pg_inherits ON inhrelid = oid WHERE inhparent = {}::regclass"
            )
            for partition, first in (("customers_low", 0), ("customers_high", 100)):
                if partition in partitions:
                    self.run(f"INSERT INTO customers VALUES ({first + number}, 'new')")
            return
        with_note = "note" in self.names("SELECT attname FROM pg_attribute WHERE attrelid = {}::regclass")
        columns, values = ("id, note", f"{number}, 'new'") if with_note else ("id", f"{number}")
        self.run(
            f"INSERT INTO orders ({columns}) VALUES ({values})",
            f"UPDATE orders SET id = id + {number} WHERE id = {number // 20}",
            f"DELETE FROM orders WHERE id = {number // 20 + 4}",
        )

    def rows(self, cursor: psycopg2.extensions.cursor, pipeline: Pipeline) -> tuple[list[Row], list[Row]]:
        """Rows of lake and source, by id, in the columns that the source has: a dropped one is kept in the lake."""
        cursor.execute(f'SELECT * FROM {self.schema}.{self.change.table} ORDER BY id::text COLLATE "C"')
        names = [column.name for column in cursor.description or ()]
        in_source = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        rows = memory_lake(pipeline).rows(pipeline.lake_table(self.name))
        visible = sorted((row for row in rows if not row["_cdc_deleted"]), key=lambda row: str(row["id"]))
        return [{name: row[name] for name in names} for row in visible], in_source


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Outcome]]:
    """By kind of change. One pipeline follows all changes at once: each is made in a schema of its own.

    The parameter says whether events follow the changes. If none follow, no table of the world has one.
    """
    with fresh_database(postgres) as source_url, fresh_store(postgres) as store_url:
        names = {kind: f"change_{number}" for number, kind in enumerate(CHANGES)}
        settings = pipeline_settings(
            tmp_path_factory.mktemp("changes"),
            source_url,
            [{"name": f"{names[kind]}.{change.table}"} for kind, change in CHANGES.items()],
        )
        with closing(World(settings=settings, source_url=source_url, store_url=store_url)) as world:
            shops = {kind: Shop(world=world, schema=names[kind], change=change) for kind, change in CHANGES.items()}
            yield follow(world, shops, with_events=request.param)


def follow(world: World, shops: dict[str, Shop], *, with_events: bool) -> dict[str, Outcome]:
    start(world, shops)
    before = snapshots(world)
    for shop in shops.values():
        shop.run(*shop.change.statements)
    if with_events:
        for shop in shops.values():
            shop.write(20)
    stopped = stopped_tables(world)
    take_due(world)
    taken = snapshots(world) - before
    assert stopped_tables(world) == {}
    answered = all_rows(world, shops)
    states = dict(world.store_query("SELECT schema_name, state FROM cdc.source_table"))
    for shop in shops.values():
        shop.write(40)
    assert stopped_tables(world) == {}
    at_the_end = all_rows(world, shops)
    return {
        kind: Outcome(
            reason=stopped.get(shop.name),
            snapshots=taken[shop.schema],
            answered=answered[kind],
            at_the_end=at_the_end[kind],
            state=states[shop.schema],
        )
        for kind, shop in shops.items()
    }


def all_rows(world: World, shops: dict[str, Shop]) -> dict[str, tuple[list[Row], list[Row]]]:
    """Of every kind of change. All are read by one process: to open another for each takes longer than the rows."""
    with (
        closing(psycopg2.connect(world.source_url, options="-c timezone=UTC")) as connection,
        connection.cursor() as cursor,
        world.process() as pipeline,
    ):
        return {kind: shop.rows(cursor, pipeline) for kind, shop in shops.items()}


def start(world: World, shops: dict[str, Shop]) -> None:
    """Every table is in the lake, later events of it are applied, and one more of each `orders` is not read yet.

    None of `customers`: an event that waits in a partition which is then detached makes its table stale
    (`tests/integration/sources/test_postgres_stream.py`).
    """
    for shop in shops.values():
        run_sql(world.source_url, f"CREATE SCHEMA {shop.schema}")
        shop.run(*CREATE)
    begin_again(world)
    for shop in shops.values():
        shop.run(f"UPDATE {shop.change.table} SET note = 'first' WHERE id = 3")
    assert stopped_tables(world) == {}
    for shop in shops.values():
        if shop.change.table == "orders":
            shop.run("INSERT INTO orders (id, note, old) VALUES (9, 'before', 'old')")


def snapshots(world: World) -> Counter[str]:
    """Schema -> how many snapshots of its table were published."""
    published = (
        "SELECT schema_name, count(*) FROM cdc.snapshot JOIN cdc.source_table AS source USING (table_id)"
        " WHERE snapshot.state = 'published' GROUP BY 1"
    )
    return Counter(dict(world.store_query(published)))


def take_due(world: World) -> None:
    with world.process() as pipeline:
        wanted = snapshot_runs(pipeline).wanted(pipeline.table_names())
    if wanted:
        begin_again(world, wanted)


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize(
    "outcomes",
    [
        pytest.param(True, id="with events", marks=pytest.mark.xdist_group("changes with events")),
        pytest.param(False, id="without", marks=pytest.mark.xdist_group("changes without events")),
    ],
    indirect=True,
)
def test_the_lake_equals_the_source_after_each_change(outcomes: dict[str, Outcome], kind: str) -> None:
    outcome = outcomes[kind]
    assert (outcome.reason is not None) == (CHANGES[kind].answer == RETAKEN), outcome.reason
    assert outcome.snapshots == (CHANGES[kind].answer == RETAKEN)
    in_lake, in_source = outcome.answered
    assert in_lake == in_source
    assert outcome.state == "live"
    in_lake, in_source = outcome.at_the_end
    assert in_lake == in_source
