"""A simulated year: what slices, cut files and the metadata store take, month by month, while `cdc clean` runs daily.

Every day some tables change, one cut is registered and applied, and what is older than `keep` says is deleted; all
other tables are idle. Then a day passes: every time in the metadata store is set back by one, and the server is
vacuumed. The lake is the tests' fast one: a real one is cleaned up by Spark with Delta's own retention, not by `keep`.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from benchmarks.bench import Bench
from benchmarks.results import RowFigures
from cdc_pipeline.areas import CDC_EVENT, DB_SNAPSHOT, STAGING_AREA
from cdc_pipeline.metadata_store.upgrade import upgrade
from tests.crash.world import World
from tests.support.guarded import begin_again
from tests.support.pipelines import pipeline_settings
from tests.support.postgres import fresh_database, fresh_store, started_server
from tests.support.streams import run_sql

log = structlog.get_logger()

GROWING = ("rows", "row_bytes", "objects", "object_bytes")
DAYS_PER_MONTH = 30
REACHED_DAYS = 60
"""By then everything that `keep` names has been deleted for the first time."""
CHANGES_PER_DAY = 20
CHANGE = "INSERT INTO {table} SELECT n, 'note ' || n FROM generate_series({first}, {last}) AS n"
A_DAY_PASSES = (
    "UPDATE cdc.slice SET registered_at = registered_at - interval '1d', applied_at = applied_at - interval '1d'",
    "UPDATE cdc.boundary SET registered_at = registered_at - interval '1d'",
    "UPDATE cdc.claim SET started_at = started_at - interval '1d', finished_at = finished_at - interval '1d'",
    "UPDATE cdc.snapshot SET started_at = started_at - interval '1d', finished_at = finished_at - interval '1d'",
    "VACUUM ANALYZE",
)
ROWS = """
    SELECT (SELECT count(*) FROM cdc.slice) + (SELECT count(*) FROM cdc.boundary) + (SELECT count(*) FROM cdc.claim)
           + (SELECT count(*) FROM cdc.quarantine) + (SELECT count(*) FROM cdc.snapshot)
           + (SELECT count(*) FROM cdc.snapshot_task),
           (SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class AS c
            WHERE c.relnamespace = 'cdc'::regnamespace AND c.relkind = 'r')
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What there is at the end of a day. `rows` and `row_bytes` of the metadata store, with indexes and dead rows."""

    day: int
    rows: int
    row_bytes: int
    objects: int
    object_bytes: int


@contextmanager
def idle_world(tables: int) -> Iterator[World]:
    """All tables are in the lake."""
    names = [f"table_{number}" for number in range(tables)]
    with (
        started_server(dict(os.environ)) as server,
        fresh_database(server) as source_url,
        fresh_store(server) as store_url,
        tempfile.TemporaryDirectory() as folder,
    ):
        run_sql(source_url, *(f"CREATE TABLE {name} (id bigint PRIMARY KEY, note text)" for name in names))
        listed = [{"name": f"public.{name}"} for name in names]
        settings = pipeline_settings(Path(folder), source_url, listed, source={"stream_partitions": 2})
        upgrade(store_url)
        world = World(settings=settings, source_url=source_url, store_url=store_url)
        begin_again(world)
        yield world
        world.close()


def one_day(world: World, day: int, busy: int) -> None:
    first = day * CHANGES_PER_DAY
    changed = world.tables[:busy]
    run_sql(
        world.source_url,
        *(CHANGE.format(table=name.table, first=first, last=first + CHANGES_PER_DAY - 1) for name in changed),
    )
    with world.process() as pipeline:
        pipeline.consumer_runs().consume_until_idle()
        for name in changed:
            pipeline.slice_worker().slice_to_lake(name)
        pipeline.cleanup().clean()


def kept(world: World, day: int) -> Kept:
    ((rows, row_bytes),) = world.store_query(ROWS)
    with world.process() as pipeline:
        found = [each for area in (CDC_EVENT, STAGING_AREA, DB_SNAPSHOT) for each in pipeline.objects.list_prefix(area)]
    return Kept(
        day=day,
        rows=rows,
        row_bytes=row_bytes,
        objects=len(found),
        object_bytes=sum(each.size_bytes for each in found),
    )


def year(tables: int, busy: int, days: int) -> Iterator[Kept]:
    """At the end of each month, and of the last day."""
    with idle_world(tables) as world:
        for day in range(1, days + 1):
            one_day(world, day, busy)
            if day % DAYS_PER_MONTH == 0 or day == days:
                yield kept(world, day)
            for statement in A_DAY_PASSES:
                world.store_query(statement)


def measure(bench: Bench) -> RowFigures:
    """A ratio of one: nothing has grown since everything that `keep` names was deleted for the first time."""
    sizes = bench.sizes("year")
    months = list[Kept]()
    for found in year(sizes["tables"], sizes["busy"], sizes["days"]):
        months.append(found)
        log.info("month", **asdict(found))
    begin = next((found for found in months if found.day >= REACHED_DAYS), months[0])
    grown = {name: (getattr(begin, name), getattr(months[-1], name)) for name in GROWING}
    values = {f"{name} on the last day": float(end) for name, (_, end) in grown.items()}
    values |= {f"{name}, last day over day {begin.day}": end / start for name, (start, end) in grown.items()}
    return RowFigures(values=values, sizes=sizes)
