"""A prepared source and an open stream for tests."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta

import psycopg2

from cdc_pipeline.consume.slice_cutter import CUT, CutSlices, SliceCutter
from cdc_pipeline.settings import Settings, TableSettings
from cdc_pipeline.settings.postgres import PostgresSource
from cdc_pipeline.sources.postgres.catalogue import read_slot
from cdc_pipeline.sources.postgres.session import connect
from cdc_pipeline.sources.postgres.setup import SourcePlan, execute_plan, plan_source
from cdc_pipeline.sources.postgres.stream import PostgresStream
from cdc_pipeline.steps import no_step
from cdc_pipeline.time_slice import EPOCH

READ_WAIT = timedelta(seconds=1)


def run_sql(url: str, *statements: str) -> None:
    """Each statement is one transaction."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for statement in statements:
            cursor.execute(statement)


def postgres_of(settings: Settings) -> PostgresSource:
    """The settings of a source that is a PostgreSQL server."""
    assert isinstance(settings.source, PostgresSource)
    return settings.source


def database_of(url: str) -> str:
    return url.rsplit("/", 1)[1].partition("?")[0]


def prepare(
    url: str, tables: Sequence[TableSettings], *, stream_partitions: int = 1
) -> tuple[PostgresSource, SourcePlan]:
    name = database_of(url)
    source = PostgresSource(kind="postgres", url=url, publication=name, slot=name, stream_partitions=stream_partitions)
    with closing(connect(url)) as connection:
        plan = plan_source(connection, source, tables)
        execute_plan(connection, plan, no_step)
        return source, plan


@contextmanager
def opened(source: PostgresSource, plan: SourcePlan) -> Iterator[PostgresStream]:
    stream = PostgresStream(
        url=source.url,
        slot=source.slot,
        publication=source.publication,
        stream_partitions=source.stream_partitions,
        tables=plan.tables,
        marks={},
        server=plan.server,
    )
    try:
        yield stream
    finally:
        stream.close()


def new_cutter(source: PostgresSource, *, slice_length: timedelta = timedelta(hours=1)) -> SliceCutter:
    with closing(connect(source.url)) as connection:
        slot = read_slot(connection, source.slot)
        assert slot is not None
        assert slot.confirmed_position is not None
        return SliceCutter(
            start=slot.confirmed_position, commit_time=EPOCH, slice_length=slice_length, slice_rows=10**6
        )


def read_until(stream: PostgresStream, cutter: SliceCutter, done: Callable[[list[CutSlices]], bool]) -> list[CutSlices]:
    """Cuts in order; gives up after a minute without an event."""
    cuts: list[CutSlices] = []
    silent = 0
    while not done(cuts):
        batch = stream.read(READ_WAIT)
        silent = silent + 1 if batch is None else 0
        assert silent < 60
        cuts.extend(cutter.add(batch) if batch is not None else [])
    return cuts


def read_marked(stream: PostgresStream, cutter: SliceCutter) -> CutSlices:
    """Everything that the source holds now, as one cut."""
    stream.send_marker(CUT)
    return read_until(stream, cutter, bool)[-1]
