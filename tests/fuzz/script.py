"""A script of changes and pipeline runs, performed line by line; then the lake has to equal its source.

A line is SQL, or a run of the pipeline in a process of its own: `!consume`, `!apply` (with the snapshots that tables
ask for by themselves), `!snapshot TABLE`, `!settle` (until nothing waits, then lake and source are compared). Behind
it may stand ` killed N`: the process dies at its Nth step; or ` meanwhile N SQL`: the SQL runs at its Nth step.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import CdcError
from cdc_pipeline.lake.columns import history_of
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.record import CURRENT, DELETED, TableName
from cdc_pipeline.steps import Moment
from cdc_pipeline.wiring import Pipeline
from snapshot.wiring import snapshot_runs
from tests.crash.failpoint import Crash
from tests.crash.world import AT_ONCE, World, take_snapshot
from tests.fuzz.shop_changes import CREATE, KEYLESS, TABLES
from tests.fuzz.shop_values import compared, plain
from tests.support.delta_rows import delta_rows
from tests.support.pipelines import consume, pipeline_settings
from tests.support.postgres import fresh_database, fresh_store
from tests.support.streams import database_of, run_sql

MOST_TURNS = 8
BEGIN = ("!snapshot", "!settle")
_RUN = re.compile(r"!(\w+)(?: (?!killed|meanwhile)(\w+))?(?: (killed|meanwhile) (\d+)(?: (.*))?)?", re.DOTALL)
_COLUMNS = """
SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = '{}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


class Differs(AssertionError):
    """The lake does not equal its source, or nothing that the pipeline does by itself makes it so."""


@contextmanager
def shop_world(
    postgres: PostgresServer, folder: Path, *, dropped_columns: str, stream_partitions: int, spark_url: str = ""
) -> Iterator[World]:
    """A shop whose tables are registered and were never read. Its lake is the fast one, or that of a Spark server."""
    with fresh_database(postgres) as source_url, fresh_store(postgres) as store_url:
        run_sql(source_url, AT_ONCE.format(database_of(source_url)), *CREATE)
        settings = pipeline_settings(
            folder,
            source_url,
            [
                {
                    "name": f"public.{table}",
                    "dropped_columns": dropped_columns,
                    "history": bool(spark_url) and table != KEYLESS,
                }
                for table in TABLES
            ],
            source={"stream_partitions": stream_partitions},
            slice_length="1d",
        )
        world = World(settings=settings, source_url=source_url, store_url=store_url, spark_url=spark_url)
        if spark_url:
            world.make_lake = None
        with closing(world):
            world.query("SET lock_timeout = '500ms'")
            with world.process() as pipeline:
                pipeline.source_setup().set_up()
            yield world


def perform(world: World, line: str) -> None:
    """Raises Differs, and whatever else is no error that the pipeline means to raise."""
    if not line.startswith("!"):
        execute(world, line)
        return
    found = _RUN.fullmatch(line)
    assert found is not None, line
    verb, table, fault, place, sql = found.groups()
    if verb == "settle":
        settle(world)
        return
    at_step = AtStep(place=int(place or 0), act=_act(world, fault, sql))
    try:
        with world.process(at_step) as pipeline:
            run(pipeline, verb, table)
    except (CdcError, Crash):
        world.bury_the_dead()


def execute(world: World, sql: str) -> None:
    """What cannot be done any more, since lines before it are gone, is not done."""
    try:
        world.query(sql)
    except psycopg2.Error:
        world.query("ROLLBACK")


@dataclass(slots=True, kw_only=True)
class AtStep:
    """Injected as `on_step`: acts once, when that many steps have begun or ended."""

    place: int
    act: Callable[[], None]
    steps: int = 0
    is_dead: bool = False

    def __call__(self, name: str, moment: Moment) -> None:
        del name, moment
        if self.is_dead:
            raise Crash
        self.steps += 1
        if self.steps == self.place:
            try:
                self.act()
            except Crash:
                self.is_dead = True
                raise


def _act(world: World, fault: str | None, sql: str | None) -> Callable[[], None]:
    def die() -> None:
        raise Crash

    return die if fault == "killed" else lambda: execute(world, sql or "")


def run(pipeline: Pipeline, verb: str, table: str | None) -> list[str]:
    """What stopped tables, as far as it is no exception."""
    tables = tuple(name for name in pipeline.table_names() if table in (None, name.table))
    match verb:
        case "consume":
            consume(pipeline)
        case "snapshot":
            _snapshot(pipeline, tables)
        case "apply":
            _snapshot(pipeline, snapshot_runs(pipeline).wanted(tables))
            return [str(found.error) for found in pipeline.slice_runs().apply(tables, by_hand=True) if found.error]
        case _:
            raise ValueError(verb)
    return []


def _snapshot(pipeline: Pipeline, tables: tuple[TableName, ...]) -> None:
    """As `SnapshotRuns.take`, in one thread: the steps of a run come in the same order whenever it is repeated."""
    if not tables:
        return
    refused = pipeline.source_setup().set_up(begin_again=tables).refused
    take_snapshot(pipeline, [name for name in tables if name not in refused])


def settle(world: World) -> None:
    for _ in range(MOST_TURNS):
        errors = list[str]()
        for verb in ("consume", "apply"):
            try:
                with world.process() as pipeline:
                    errors += run(pipeline, verb, None)
            except CdcError as error:
                errors.append(str(error))
                world.bury_the_dead()
        waiting = world.store_query("SELECT table_name, parked_reason FROM cdc.source_table WHERE state <> 'live'")
        if not errors and not waiting:
            check_equal(world)
            return
    raise Differs(f"it does not settle: {errors}, {waiting}")


def check_equal(world: World) -> None:
    """All columns that the source's catalogue has now, by plain SELECT against what deltalake reads."""
    with world.process() as pipeline:
        for name in pipeline.table_names():
            columns = world.query(_COLUMNS.format(name.table))
            shown = set(pipeline.lake.read_columns(pipeline.lake_table(name)))
            if shown != {column for column, _ in columns}:
                raise Differs(f"{name.table} has the columns {columns}, and the lake shows {sorted(shown)}")
            found = [row for row in delta_rows(pipeline.objects.delta_url(lake_key(name))) if not row[DELETED]]
            in_lake = _counted([row[column] for column, _ in columns] for row in found)
            check_history(pipeline, name, [column for column, _ in columns], in_lake)
            selected = ", ".join(compared(column, type_) for column, type_ in columns)
            in_source = _counted(world.query(f"SELECT {selected} FROM {name.table}"))
            if in_lake != in_source:
                only = f"only in the source: {in_source - in_lake}\nonly in the lake: {in_lake - in_source}"
                raise Differs(f"{name.table} {[column for column, _ in columns]}\n{only}")


def check_history(pipeline: Pipeline, name: TableName, columns: list[str], in_lake: Counter[tuple[Any, ...]]) -> None:
    """The periods that go on have the table's rows."""
    table = pipeline.lake_table(name)
    history = history_of(table)
    if not table.keeps_history or pipeline.lake.read_version(history) is None:
        return
    periods = delta_rows(pipeline.objects.delta_url(lake_key(history.name)))
    found = _counted([row[column] for column in columns] for row in periods if row[CURRENT] and not row[DELETED])
    if found != in_lake:
        only = f"only in the table: {in_lake - found}\nonly in its history: {found - in_lake}"
        raise Differs(f"{history.name} {columns}\n{only}")


def _counted(rows: Iterable[Iterable[Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(plain(value) for value in row) for row in rows)
