"""Repairs rows of the lake that differ from the source: registers a late slice with the source's rows of one position.

Other rows are not rewritten. The slice's rows have the position's version, so later events replace them as usual. A row
of the source that the lake's types cannot hold is left alone: its copy has NULL where a value does not fit.
"""

import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import Event

import pyarrow as pa
import structlog

from cdc_pipeline.apply.slice_to_lake import SliceWorker
from cdc_pipeline.apply.table_work import TableWork
from cdc_pipeline.areas import repair_folder
from cdc_pipeline.errors import CdcError, LeaseBusy, SnapshotError, UsageError
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.metadata_store.lease_keeper import LeaseKeeper
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.metadata_store.ledger.records import Boundary
from cdc_pipeline.operations.held_cuts import HeldCuts, begun_history, is_in, shown_shape, shown_version
from cdc_pipeline.operations.late_slices import LateSlices
from cdc_pipeline.operations.source_copies import RowId, SourceCopies, SourceCopy, ids_of
from cdc_pipeline.operations.source_setup.registered import known_table
from cdc_pipeline.operations.table_errors import result_or_error
from cdc_pipeline.record import COMMIT_TIME, OPERATION, VERSION, TableName, TableSchema
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.copied_rows import HeldPosition
from cdc_pipeline.sources.protocol import Source

log = structlog.get_logger()

MOST_ROWS = 1_000_000
_STREAM_PARTITION = 0
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """The repair of one table as of `position`. `slice_number`: of the late slice; None if nothing differed.

    `rows_withheld`: rows of the source that were left alone, because the lake's types cannot hold a value of them;
    `why_withheld`: the reasons. `problem`: why the table could not be repaired; `position` is None then.
    """

    table: TableName
    position: str | None
    rows_written: int
    rows_removed: int
    slice_number: int | None
    rows_withheld: int = 0
    why_withheld: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Repairs tables of the lake."""

    work: TableWork
    source: Source
    worker: SliceWorker
    cuts: HeldCuts
    copies: SourceCopies
    late_slices: LateSlices

    def run(self, table: TableName, *, timeout: timedelta = timedelta(minutes=10)) -> Repaired:
        """Writes the rows that differ; they are applied on return. The stream and other tables continue meanwhile.

        The lease keeps other workers from applying slices after the position until the late slice is registered. Before
        the comparison, the table is marked as under repair: from then on, deletes leave tombstones. So a row that was
        deleted after the position stays deleted, because its tombstone has the newer version. The mark stays when the
        repair fails while it puts the cut file of the late slice or registers what is decided there, because another
        process may register that slice later.

        `timeout`: for the lease, then again for the cut, and again for the lake to reach the late slice.

        Raises UsageError for a keyless table, SnapshotError while a snapshot of the table is being taken.
        """
        if self.work.lake_table(table).schema.is_keyless:
            raise UsageError(
                f"{table} has no key that identifies its rows",
                expected="a table with a key",
                remedy=f"take a new snapshot of it: cdc snapshot {table}",
            )
        table_id = self.work.store.tables.table(table).table_id
        with (
            self.work.leased_when_free(table_id, time.monotonic() + timeout.total_seconds()) as (lease, keeper),
            self.cuts.held(timeout, purpose="repair") as (held, boundary),
        ):
            version = self._version_at(table, boundary, lease, keeper)
            self.work.store.tables.begin_repair(lease)
            repaired = self._register(table, held, boundary, version, lease, keeper)
        deadline = time.monotonic() + timeout.total_seconds()
        while repaired.slice_number is not None:
            with suppress(LeaseBusy):
                self.worker.slice_to_lake(table)
            if self._is_applied(table, repaired.slice_number):
                break
            _pause(deadline)
        log.info("table repaired", table=str(table), written=repaired.rows_written, removed=repaired.rows_removed)
        return repaired

    def run_each(self, tables: Sequence[TableName]) -> tuple[Repaired, ...]:
        """Repairs the tables one after the other. A table that cannot be repaired does not stop the next one."""
        return tuple(self._repaired(table) for table in tables)

    def _repaired(self, table: TableName) -> Repaired:
        found = result_or_error(lambda: self.run(table), table, otherwise="table not repaired")
        if not isinstance(found, CdcError):
            return found
        return Repaired(
            table=table, position=None, rows_written=0, rows_removed=0, slice_number=None, problem=str(found)
        )

    def _version_at(self, table: TableName, boundary: Boundary, lease: Lease, keeper: LeaseKeeper) -> int:
        """Applies slices up to the boundary and returns the lake version there, which is the latest one."""
        table_id = self.work.store.tables.table(table).table_id
        if self.work.store.snapshots.active_snapshot(table_id) is not None:
            raise SnapshotError(f"a snapshot of {table} is being taken", remedy="repair when it has ended")
        before = self.work.store.snapshots.fence_at(table_id, boundary.position) + 1
        ended = self.worker.apply_held(lease, keeper, table, before=before).ended
        version = shown_version(self.work, self.work.lake_table(table), boundary)
        if version is None:
            raise CdcError(f"{table} cannot be repaired: {ended}", remedy="run cdc snapshot first")
        return version

    def _register(
        self, table: TableName, held: HeldPosition, boundary: Boundary, version: int, lease: Lease, keeper: LeaseKeeper
    ) -> Repaired:
        may_be_decided, number = False, None

        def before_put() -> None:
            nonlocal may_be_decided
            keeper.check()
            may_be_decided = True

        try:
            lake_table = self._shown_table(table, version)
            found, copy = self._found(lake_table, held, version)
            rows = _events(found, lake_table.schema, held.version, held.time)
            if found.num_rows:
                row, folder = self.work.store.tables.table(table), repair_folder(boundary.boundary_id)
                late = self.late_slices.write(row, _STREAM_PARTITION, folder, rows, lake_table.schema)
                while number is None:
                    may_be_decided = False  # also after a round in which another file took the position
                    number = self.late_slices.chain.register_late(late, lake_table.schema, lease, before_put)
            else:
                self.work.store.tables.end_repair(lease)
        except BaseException:  # SystemExit, too, by which SIGTERM ends it
            if not may_be_decided:  # there is nothing that another process could register
                with suppress(CdcError):
                    self.work.store.tables.end_repair(lease)
            raise
        written = found[OPERATION].to_pylist().count("u")
        return Repaired(
            table=table,
            position=held.shown,
            rows_written=written,
            rows_removed=found.num_rows - written,
            slice_number=number,
            rows_withheld=copy.rows_withheld,
            why_withheld="; ".join(copy.why_withheld) or None,
        )

    def _shown_table(self, table: TableName, version: int) -> LakeTable:
        """Returns the table with the registered columns that the lake has: events after the position may add others."""
        registered = self.work.lake_table(table)
        shape = shown_shape(self.work, registered, version)
        columns = tuple(column for column in registered.schema.columns if is_in(shape, column))
        return replace(registered, schema=replace(registered.schema, columns=columns))

    def _found(self, table: LakeTable, held: HeldPosition, version: int) -> tuple[pa.Table, SourceCopy]:
        """Returns the rows that differ, without the withheld ones, and the copy that was compared.

        Raises CdcError for more than MOST_ROWS, and if the copy would lack rows.
        """
        known = known_table(self.work.store, self.work.store.tables.table(table.name))
        with self.source.copy_at(held.exported) as source:
            source.columns(known)  # locks the table, and refuses one that was rewritten meanwhile
            with self.copies.of(table.name, source, table.schema, with_ids=True) as copy:
                found = self._differing(table, copy.key, version)
        if found.num_rows > MOST_ROWS:
            raise CdcError(
                f"more than {MOST_ROWS:,} rows of {table.name} differ",
                expected="a few rows to repair",
                remedy=f"take a new snapshot of it: cdc snapshot {table.name}",
            )
        return _without(found, copy.withheld_ids, table.schema), copy

    def _differing(self, table: LakeTable, source_key: str, version: int) -> pa.Table:
        """Returns the rows that differ in the lake table, or in the periods of its history that go on."""
        found = self.work.lake.differing_rows(table, source_key, version, most=MOST_ROWS + 1)
        begun = begun_history(self.work.lake, table)
        if begun is None:
            return found
        known = set(ids_of(found, table.schema))
        more = self.work.lake.differing_rows(begun[0], source_key, begun[1], most=MOST_ROWS + 1)
        # an id may have a wider type in the history, whose older periods need it
        return pa.concat_tables([found, _without(more, known, table.schema)], promote_options="permissive")

    def _is_applied(self, table: TableName, number: int) -> bool:
        position = self.work.store.lake_positions.lake_position(self.work.store.tables.table(table).table_id)
        return position.applied_through >= number


def _without(rows: pa.Table, ids: AbstractSet[RowId], schema: TableSchema) -> pa.Table:
    return rows.filter(pa.array([each not in ids for each in ids_of(rows, schema)], pa.bool_())) if ids else rows


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


def _pause(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise CdcError(
            "the table could not be repaired in the time given",
            expected="its late slice in the lake",
            remedy="look at cdc status, then try again",
        )
    Event().wait(_POLL_SECONDS)
