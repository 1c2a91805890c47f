"""source = lake at a position: the source's rows as of one commit position against the lake version that equals it."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event

import psycopg2.extensions
import pyarrow.parquet as pq
import structlog
from psycopg2 import sql

from cdc_pipeline.areas import staging_prefix
from cdc_pipeline.errors import CdcError, LeaseBusy
from cdc_pipeline.lake.comparison import Comparison, compare
from cdc_pipeline.metadata_store.rows import Boundary
from cdc_pipeline.record import TableName
from cdc_pipeline.slice_cutter import CUT_AT
from cdc_pipeline.source_setup import consume_until_idle
from cdc_pipeline.sources.copy_stream import copy_record_batches
from cdc_pipeline.sources.postgres_catalogue import read_slot
from cdc_pipeline.sources.postgres_position import HeldPosition, hold_position, snapshot_connection
from cdc_pipeline.sources.postgres_session import MESSAGE_PREFIX, connect
from cdc_pipeline.steps import step
from cdc_pipeline.types import arrow_schema
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()

_MOST_TRIES = 5
_POLL = timedelta(milliseconds=200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One table's verdict as of `position` (as the source writes it), when the source's clock showed `time`."""

    table: TableName
    position: str
    time: datetime
    lake_version: int | None
    comparison: Comparison

    @property
    def is_equal(self) -> bool:
        return self.comparison.differing_rows == 0


def verify(
    pipeline: Pipeline, tables: Sequence[TableName], *, patience: timedelta = timedelta(minutes=10)
) -> tuple[Verified, ...]:
    """Compares every row at one and the same position for all tables, also while the source is written to.

    The stream is cut exactly at the position, so a lake version exists that equals it. A consumer that runs is asked
    for that cut; without one, this process reads the stream. Slices up to there are applied by whoever comes first.
    """
    deadline = time.monotonic() + patience.total_seconds()
    with held_cut(pipeline, deadline, purpose="verify") as (held, boundary):
        return tuple(_verify_table(pipeline, table, held, boundary, deadline) for table in tables)


@contextmanager
def held_cut(pipeline: Pipeline, deadline: float, *, purpose: str) -> Iterator[tuple[HeldPosition, Boundary]]:
    """A position at which the stream is cut, and the source can be read while the block runs."""
    with ExitStack() as holding:
        for _ in range(_MOST_TRIES):
            slot_name = f"cdc_{purpose}_{pipeline.new_id().hex[:8]}"
            held = holding.enter_context(hold_position(pipeline.source_url, slot_name, pipeline.on_step))
            boundary = _cut_at(pipeline, held, deadline)
            if boundary is not None:
                yield held, boundary
                return
            holding.close()
            log.info("the stream had moved on before it could be cut; taking a later position")
    raise CdcError(
        f"the stream could not be cut at any of {_MOST_TRIES} positions",
        expected="a cut before the consumer closes the slice",
        remedy=f"run {purpose} again; a longer slice_length makes it easier",
    )


def _cut_at(pipeline: Pipeline, held: HeldPosition, deadline: float) -> Boundary | None:
    """The boundary at the held position; None when an earlier boundary is already behind it."""
    source, stream = pipeline.source_url, pipeline.settings.name
    with closing(connect(source)) as connection, connection.cursor() as cursor:
        slot = read_slot(connection, pipeline.settings.postgres.slot)
        mark = f"{CUT_AT}{held.offset}:{pipeline.new_id()}"
        with step(pipeline.on_step, "source.mark"):
            cursor.execute("SELECT pg_logical_emit_message(true, %s, %s)", (MESSAGE_PREFIX, mark))
            connection.commit()
    if slot is None or slot.active_pid is None:
        consume_until_idle(pipeline)
    while time.monotonic() < deadline:
        boundary = pipeline.store.positions.boundary_at(stream, held.offset)
        if boundary is not None:
            return boundary
        if (pipeline.store.streams.next_offset(stream) or "") > held.offset:
            return None
        _pause()
    raise _timed_out("the consumer did not register the cut")


def _verify_table(
    pipeline: Pipeline, table: TableName, held: HeldPosition, boundary: Boundary, deadline: float
) -> Verified:
    version = _lake_version_at(pipeline, table, boundary, deadline)
    with source_copy(pipeline, table, held) as url, step(pipeline.on_step, "lake_table.compare"):
        comparison = compare(
            pipeline.spark_session(), pipeline.lake_table(table), [url], pipeline.lake_url(table), version
        )
    return Verified(table=table, position=held.lsn, time=held.time, lake_version=version, comparison=comparison)


def _lake_version_at(pipeline: Pipeline, table: TableName, boundary: Boundary, deadline: float) -> int:
    """Applies what is registered, or waits for the one who does. A claim never reaches over a requested boundary."""
    table_id = pipeline.store.tables.table(table).table_id
    while time.monotonic() < deadline:
        version = shown_version(pipeline, table, boundary)
        if version is not None:
            return version
        try:
            ended = pipeline.slice_worker().slice_to_lake(table).ended
        except LeaseBusy:
            _pause()
        else:
            if pipeline.store.history.published_snapshot(table_id) is None:
                raise CdcError(f"{table} cannot be verified: {ended}", remedy="run cdc snapshot first")
    raise _timed_out(f"{table} was not applied up to the position")


def shown_version(pipeline: Pipeline, table: TableName, boundary: Boundary) -> int | None:
    """What readers saw last before the first claim behind the boundary, whoever wrote it; None: not applied so far."""
    table_id = pipeline.store.tables.table(table).table_id
    claimed = pipeline.store.positions.version_vector(boundary.boundary_id).get(table_id)
    fence = pipeline.lake.read_fence(pipeline.lake_table(table))
    if claimed is None or fence is None:
        return claimed
    following = pipeline.store.positions.next_change(table_id, boundary.boundary_id)
    if following is None or fence.number < following.number:
        return fence.lake_version
    return claimed if following.lake_version is None else following.lake_version - 1


@contextmanager
def source_copy(pipeline: Pipeline, table: TableName, held: HeldPosition) -> Iterator[str]:
    """URL of a Parquet file with the source's rows at the position, while the block runs; memory holds one block."""
    schema = pipeline.lake_table(table).schema
    key = f"{staging_prefix(table, f'verify-{pipeline.new_id().hex}')}/source.parquet"
    with (
        tempfile.TemporaryDirectory() as temporary,
        snapshot_connection(pipeline.source_url, held.exported) as connection,
    ):
        path = Path(temporary) / "source.parquet"
        with pq.ParquetWriter(path, arrow_schema(schema), compression="zstd") as writer:
            for copied in copy_record_batches(connection, _query(connection, table, schema.names), schema):
                writer.write_batch(copied.rows)
        with step(pipeline.on_step, "verification_file.put"):
            pipeline.objects.put_file_if_absent(key, path)
    try:
        yield pipeline.objects.spark_url(key)
    finally:
        with step(pipeline.on_step, "verification_file.delete"):
            pipeline.objects.delete(key)


def _query(connection: psycopg2.extensions.connection, table: TableName, names: Sequence[str]) -> str:
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    query = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(table.schema, table.table))
    return query.as_string(connection)


def _pause() -> None:
    Event().wait(_POLL.total_seconds())


def _timed_out(found: str) -> CdcError:
    return CdcError(found, expected="it within the time given to verify", remedy="look at cdc status, then try again")
