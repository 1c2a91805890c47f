"""source = lake at a position: the source's rows as of one commit position against the lake version that equals it."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event

import pyarrow.parquet as pq
import structlog

from cdc_pipeline.areas import lake_key, staging_prefix
from cdc_pipeline.consume.slice_cutter import CUT_AT
from cdc_pipeline.errors import CdcError, LeaseBusy
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.differences import Comparison
from cdc_pipeline.lake.schema_change import shape_at
from cdc_pipeline.lake.shape import Shape
from cdc_pipeline.metadata_store.ledger.records import Boundary
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.source_setup import consume_until_idle
from cdc_pipeline.sources.copied_rows import HeldPosition
from cdc_pipeline.sources.protocol import TableCopy
from cdc_pipeline.steps import step
from cdc_pipeline.types import arrow_schema
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()

_MOST_TRIES = 5
_POLL = timedelta(milliseconds=200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One table's verdict as of `position` (as the source writes it), when the source's clock showed `time`.

    Rows are compared over the columns that the source has there and the lake too. `columns_missing`: columns of the
    source without a place in the lake; `columns_extra`: those that readers of the lake see and the source has not.
    `rows_withheld`: rows of the source with a value that the lake's type cannot hold. `problem`: why nothing was
    compared; then there is no `comparison`.
    """

    table: TableName
    position: str
    time: datetime
    lake_version: int | None = None
    comparison: Comparison | None = None
    columns_missing: tuple[str, ...] = ()
    columns_extra: tuple[str, ...] = ()
    rows_withheld: int = 0
    problem: str = ""

    @property
    def is_equal(self) -> bool:
        differs = self.problem or self.columns_missing or self.columns_extra or self.rows_withheld
        return not differs and self.comparison is not None and self.comparison.differing_rows == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCopy:
    """Rows of the source as one Parquet file in the object store, under `key`.

    `rows_withheld` counts those with a value that the lake's type cannot hold; the file has NULL in its place.
    """

    key: str
    rows_withheld: int


def verify(
    pipeline: Pipeline, tables: Sequence[TableName], *, timeout: timedelta = timedelta(minutes=10)
) -> tuple[Verified, ...]:
    """Compares every row at one and the same position for all tables, also while the source is written to.

    The stream is cut exactly at the position, so a lake version exists that equals it. A consumer that runs is asked
    for that cut; without one, this process reads the stream. Slices up to there are applied by whoever comes first.
    Each table has its verdict, also one that is stale, fails or has no snapshot: nobody waits for it.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    verdicts = dict[TableName, Verified]()
    with held_cut(pipeline, deadline, purpose="verify") as (held, boundary):
        while left := [table for table in tables if table not in verdicts]:
            is_over = time.monotonic() >= deadline
            for table in left:
                found = _verdict(pipeline, table, held, boundary)
                if found is None and is_over:
                    found = _not_compared(table, held, "it was not applied up to the position in the time given")
                if found is not None:
                    verdicts[table] = found
            if len(verdicts) < len(tables):
                _pause()
    return tuple(verdicts[table] for table in tables)


@contextmanager
def held_cut(pipeline: Pipeline, deadline: float, *, purpose: str) -> Iterator[tuple[HeldPosition, Boundary]]:
    """A position at which the stream is cut, and the source can be read while the block runs."""
    with ExitStack() as holding:
        for _ in range(_MOST_TRIES):
            name = pipeline.new_id().hex[:8]
            held = holding.enter_context(pipeline.source.hold_position(purpose, name=name))
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
    stream = pipeline.settings.name
    if not pipeline.source.send_marker(f"{CUT_AT}{held.offset}:{pipeline.new_id()}"):
        consume_until_idle(pipeline)
    while time.monotonic() < deadline:
        boundary = pipeline.store.lake_positions.boundary_at(stream, held.offset)
        if boundary is not None:
            return boundary
        if (pipeline.store.streams.next_offset(stream) or "") > held.offset:
            return None
        _pause()
    raise _timed_out("the consumer did not register the cut")


def _verdict(pipeline: Pipeline, table: TableName, held: HeldPosition, boundary: Boundary) -> Verified | None:
    """None: somebody else is about to apply what is missing."""
    try:
        version = _lake_version_at(pipeline, table, boundary)
        return None if version is None else _compared(pipeline, table, held, version)
    except CdcError as error:
        log.warning("table not compared", table=str(table), found=str(error))
        return _not_compared(table, held, str(error))


def _not_compared(table: TableName, held: HeldPosition, problem: str) -> Verified:
    return Verified(table=table, position=held.shown, time=held.time, problem=problem)


def _lake_version_at(pipeline: Pipeline, table: TableName, boundary: Boundary) -> int | None:
    """Applies what is registered; None while somebody else does. A claim never reaches over a requested boundary."""
    version = shown_version(pipeline, table, boundary)
    if version is not None:
        return version
    try:
        ended = pipeline.slice_worker().slice_to_lake(table).ended
    except LeaseBusy:
        return None
    row = pipeline.store.tables.table(table)
    if pipeline.store.snapshot_history.published_snapshot(row.table_id) is None:
        raise CdcError(f"{table} cannot be verified: {ended}", remedy="run cdc snapshot first")
    return shown_version(pipeline, table, boundary)


def _compared(pipeline: Pipeline, table: TableName, held: HeldPosition, version: int) -> Verified:
    """Over the columns that the source's catalogue has at the position, whatever is registered of them."""
    registered = pipeline.lake_table(table)
    with step(pipeline.on_step, "lake_schema.read"):
        shape = shape_at(DeltaLog(pipeline.objects, lake_key(table)), version)
    with pipeline.source.copy_at(held.exported) as source:
        columns = source.columns(table)
        if not columns:
            raise CdcError(f"the source has no table {table}", remedy="make it again, or take it out of pipeline.yml")
        common = tuple(column for column in columns if _is_in(shape, column))
        names = {column.name for column in common}
        verdict = Verified(
            table=table,
            position=held.shown,
            time=held.time,
            lake_version=version,
            columns_missing=tuple(column.name for column in columns if column.name not in names),
            columns_extra=_extra(pipeline, table, shape, {column.name for column in columns}),
        )
        if not common or not names.issuperset(registered.schema.key):
            return replace(verdict, problem="the columns of its id are not both in the source and in the lake")
        schema = TableSchema(columns=_as_in_lake(pipeline, table, common), key=registered.schema.key)
        with _copied(pipeline, table, source, schema) as copy:
            comparison = pipeline.lake.compare(replace(registered, schema=schema), copy.key, version)
    return replace(verdict, comparison=comparison, rows_withheld=copy.rows_withheld)


def _is_in(shape: Shape, column: Column) -> bool:
    """By its number: another column of this name, or this one under another name, is none."""
    own = shape.find(column)
    return own is not None and not own.dropped and own.name == column.name


def _extra(pipeline: Pipeline, table: TableName, shape: Shape, in_source: set[str]) -> tuple[str, ...]:
    """What readers see and the source has not. A column that is about to be kept hidden is none of these."""
    registered = pipeline.lake_table(table).schema.names
    is_kept = pipeline.settings.table(table).dropped_columns == "keep"
    return tuple(name for name in shape.shown if name not in in_source and not (is_kept and name not in registered))


def _as_in_lake(pipeline: Pipeline, table: TableName, columns: Sequence[Column]) -> tuple[Column, ...]:
    """With the types by which the lake knows them: a value that does not fit there is a difference."""
    registered = pipeline.lake_table(table).schema.columns
    numbered = {column.number: column.type for column in registered}
    named = pipeline.store.tables.known_columns(pipeline.store.tables.table(table).table_id)
    types = {column.name: column.type for column in columns} | {name: known.type for name, known in named.items()}
    return tuple(replace(column, type=numbered.get(column.number) or types[column.name]) for column in columns)


def shown_version(pipeline: Pipeline, table: TableName, boundary: Boundary) -> int | None:
    """What readers saw last before the first claim behind the boundary, whoever wrote it; None: not applied so far."""
    table_id = pipeline.store.tables.table(table).table_id
    claimed = pipeline.store.lake_positions.applied_version(table_id, boundary.boundary_id)
    fence = pipeline.lake.read_fence(pipeline.lake_table(table))
    if claimed is None or fence is None:
        return claimed
    following = pipeline.store.lake_positions.next_change(table_id, boundary.boundary_id)
    if following is None or fence.number < following.number:
        return fence.lake_version
    return claimed if following.lake_version is None else following.lake_version - 1


@contextmanager
def source_copy(pipeline: Pipeline, table: TableName, held: HeldPosition, schema: TableSchema) -> Iterator[SourceCopy]:
    """Rows of the source at the position, with the schema's columns, while the block runs."""
    with (
        pipeline.source.copy_at(held.exported) as source,
        _copied(pipeline, table, source, schema) as copy,
    ):
        yield copy


@contextmanager
def _copied(pipeline: Pipeline, table: TableName, source: TableCopy, schema: TableSchema) -> Iterator[SourceCopy]:
    """Memory holds one block."""
    key = f"{staging_prefix(table, f'verify-{pipeline.new_id().hex}')}/source.parquet"
    rows_withheld = 0
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "source.parquet"
        with pq.ParquetWriter(path, arrow_schema(schema), compression="zstd") as writer:
            for copied in source.rows(table, schema):
                writer.write_batch(copied.rows)
                rows_withheld += len(copied.unfit_rows)
        with step(pipeline.on_step, "verification_file.put"):
            pipeline.objects.put_file_if_absent(key, path)
    try:
        yield SourceCopy(key=key, rows_withheld=rows_withheld)
    finally:
        with step(pipeline.on_step, "verification_file.delete"):
            pipeline.objects.delete(key)


def _pause() -> None:
    Event().wait(_POLL.total_seconds())


def _timed_out(found: str) -> CdcError:
    return CdcError(found, expected="it within the time given to verify", remedy="look at cdc status, then try again")
