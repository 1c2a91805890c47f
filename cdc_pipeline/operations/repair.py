"""Rows of the lake that differ from the source -> a late slice with the source's rows, as of one position.

Nothing else is rewritten. The slice's rows have the position's version: events behind it count on top.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Event

import pyarrow as pa
import structlog

from cdc_pipeline.errors import CdcError, LeaseBusy, UsageError
from cdc_pipeline.metadata_store.lease_keeper import LeaseKeeper, awaited_lease
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.metadata_store.ledger.records import Boundary
from cdc_pipeline.operations.verification import held_cut, shown_version, source_copy
from cdc_pipeline.record import COMMIT_TIME, OPERATION, VERSION, TableName, TableSchema
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.copied_rows import HeldPosition
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()

MOST_ROWS = 1_000_000
_STREAM_PARTITION = 0
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What was found as of `position` and mended; `slice_number` None: nothing differed.

    `problem`: why the table could not be repaired; then there is no position.
    """

    table: TableName
    position: str | None
    rows_written: int
    rows_removed: int
    slice_number: int | None
    problem: str | None = None


def repair(pipeline: Pipeline, table: TableName, *, timeout: timedelta = timedelta(minutes=10)) -> Repaired:
    """Applied on return. Other tables go on meanwhile, and so does the stream.

    Nobody else applies slices from the position on until the differences are registered, or the table is known to be
    under repair: a row that was deleted behind the position must leave a tombstone that the repair loses against, also
    when the repair dies between its file and its registration, and somebody else registers it later. Raises UsageError
    for a table without a key.
    """
    if pipeline.lake_table(table).schema.is_bag:
        raise UsageError(
            f"{table} has no key to tell its rows apart by",
            expected="a table with a key",
            remedy="take a new snapshot of it: cdc snapshot",
        )
    deadline = time.monotonic() + timeout.total_seconds()
    table_id, duration = pipeline.store.tables.table(table).table_id, pipeline.settings.worker.lease
    with (
        awaited_lease(
            pipeline.store.leases,
            table_id,
            owner=pipeline.owner,
            duration=duration,
            when_busy=lambda _: _pause(deadline),
        ) as (lease, keeper),
        held_cut(pipeline, deadline, purpose="repair") as (held, boundary),
    ):
        version = _version_at(pipeline, table, boundary, lease, keeper)
        pipeline.store.tables.begin_repair(lease)
        repaired = _register(pipeline, table, held, boundary, version, lease)
    while repaired.slice_number is not None and not _is_applied(pipeline, table, repaired.slice_number):
        try:
            pipeline.slice_worker().slice_to_lake(table)
        except LeaseBusy:
            _pause(deadline)
    log.info("table repaired", table=str(table), written=repaired.rows_written, removed=repaired.rows_removed)
    return repaired


def _version_at(pipeline: Pipeline, table: TableName, boundary: Boundary, lease: Lease, keeper: LeaseKeeper) -> int:
    """The lake's version right at the boundary, which is its latest."""
    table_id = pipeline.store.tables.table(table).table_id
    before = pipeline.store.snapshots.fence_at(table_id, boundary.position) + 1
    ended = pipeline.slice_worker().apply_held(lease, keeper, table, before=before).ended
    version = shown_version(pipeline, table, boundary)
    if version is None:
        raise CdcError(f"{table} cannot be repaired: {ended}", remedy="run cdc snapshot first")
    return version


def _register(
    pipeline: Pipeline, table: TableName, held: HeldPosition, boundary: Boundary, version: int, lease: Lease
) -> Repaired:
    lake_table = pipeline.lake_table(table)
    with source_copy(pipeline, table, held, lake_table.schema) as copy:
        found = pipeline.lake.differing_rows(lake_table, copy.key, version, most=MOST_ROWS + 1)
    if found.num_rows > MOST_ROWS:
        raise CdcError(
            f"more than {MOST_ROWS:,} rows of {table} differ",
            expected="a few rows to mend",
            remedy="take a new snapshot of it: cdc snapshot",
        )
    written = found[OPERATION].to_pylist().count("i")
    number = None
    if found.num_rows:
        rows = _events(found, lake_table.schema, held.version, held.time)
        row, folder = pipeline.store.tables.table(table), f"repair-{boundary.boundary_id}"
        number = pipeline.late_slices().register(row, _STREAM_PARTITION, folder, rows, lake_table.schema, lease=lease)
    else:
        pipeline.store.tables.end_repair(lease)
    return Repaired(
        table=table,
        position=held.shown,
        rows_written=written,
        rows_removed=found.num_rows - written,
        slice_number=number,
    )


def _events(found: pa.Table, schema: TableSchema, version: str, moment: datetime) -> pa.Table:
    target = event_schema(schema)
    given = {
        VERSION: pa.array([version] * found.num_rows, pa.string()),
        COMMIT_TIME: pa.array([moment] * found.num_rows, pa.timestamp("us", "UTC")),
    } | {name: found[name] for name in found.column_names}
    columns = [
        given[field.name].cast(field.type) if field.name in given else pa.nulls(found.num_rows, field.type)
        for field in target
    ]
    return pa.table(columns, schema=target)


def _is_applied(pipeline: Pipeline, table: TableName, number: int) -> bool:
    position = pipeline.store.lake_positions.lake_position(pipeline.store.tables.table(table).table_id)
    return position.applied_through >= number


def _pause(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise CdcError(
            "the table could not be repaired in the time given",
            expected="its lease, and a cut of its stream",
            remedy="look at cdc status, then try again",
        )
    Event().wait(_POLL_SECONDS)


def repair_tables(pipeline: Pipeline, tables: Sequence[TableName]) -> tuple[Repaired, ...]:
    """One after the other: one that cannot be repaired does not keep the next from its turn."""
    return tuple(_repaired(pipeline, table) for table in tables)


def _repaired(pipeline: Pipeline, table: TableName) -> Repaired:
    try:
        return repair(pipeline, table)
    except CdcError as error:
        log.warning("table not repaired", table=str(table), found=str(error))
        return Repaired(
            table=table, position=None, rows_written=0, rows_removed=0, slice_number=None, problem=str(error)
        )
