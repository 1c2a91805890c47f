"""Applies slices to many tables, each on its own, and reports the runs that a scheduler starts.

A table that fails never stops the others.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from threading import Event
from typing import Any

import structlog

from cdc_pipeline.apply.publishing import publish
from cdc_pipeline.apply.slice_to_lake import Applied, SliceWorker
from cdc_pipeline.errors import CdcError, LeaseBusy, StaleEpoch, TablePauses
from cdc_pipeline.lake.protocol import NOTHING_APPLIED
from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.snapshots.snapshots import NewSnapshot
from cdc_pipeline.metadata_store.states import NOT_REGISTERED, SnapshotState, TableState
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.operations.table_errors import result_or_error
from cdc_pipeline.record import TableName, encode_position

log = structlog.get_logger()

_SHOWN = ("inserted", "updated", "deleted", "ignored")
_FAILED = (SnapshotState.FAILED, SnapshotState.ABANDONED)
_LEASE_WAIT, _LEASE_POLL_SECONDS = timedelta(minutes=1), 1
_UNKNOWN = "no event has shown the table's columns yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult:
    """The result for one table. `exit_code`: 0, or the exit code of the error that stopped the table."""

    table: TableName
    applied: Applied | None
    error: CdcError | None

    @property
    def exit_code(self) -> int:
        return 0 if self.error is None else self.error.exit_code

    def row(self) -> dict[str, Any]:
        outcomes = self.applied.outcomes if self.applied else ()
        return {
            "table": str(self.table),
            "claims": len(outcomes),
            **{what: sum(getattr(outcome.counts, what) for outcome in outcomes) for what in _SHOWN},
            "ended": str(self.error) if self.error else self.applied.ended if self.applied else "",
        }


def _busy(results: Iterable[TableResult]) -> list[TableName]:
    """Returns the tables whose lease another worker has, or was lost: to another worker, or with the store away."""
    return [result.table for result in results if isinstance(result.error, (LeaseBusy, StaleEpoch))]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyLakes:
    """Creates the lake tables of a source whose tables have no initial snapshot."""

    worker: SliceWorker
    clock: Callable[[], datetime]

    def begin(self, table: TableName) -> bool:
        """Publishes an empty lake table before the first event. Returns False while the table's columns are unknown.

        Does nothing for a published table, for a stale one, whose first events are missing, and for one whose snapshot
        of exported files is under way. Safe to repeat after a crash at any step, because the id of the empty snapshot
        changes only when a rebuild found that the lake does not have it.

        Raises LeaseBusy while another process works on the table, TableStale when it becomes stale meanwhile. After an
        error the table pauses, as after one of its slices.
        """
        work = self.worker.work
        tables, snapshots = work.store.tables, work.store.snapshots
        row = tables.table(table)
        if row.schema_id is None:
            return False
        if self._is_begun(row):
            return True
        with work.leased(row.table_id) as held, self.worker.pausing(held[0], table):
            if self._is_begun(tables.table(table)):
                return True
            new = snapshots.create_snapshot(self._snapshot(row, row.schema_id), refuse_stale=True)
            if new.state is not SnapshotState.PUBLISHED:
                snapshots.set_snapshot_state(new.snapshot_id, SnapshotState.PUBLISHING)
                lake_table = work.lake_table(table)
                work.lake.create_table(lake_table)
                publish(work, held, lake_table, new, fence=NOTHING_APPLIED, begins=True)
        return True

    def _is_begun(self, row: SourceTable) -> bool:
        """Whether the table gets no empty lake table, as of now: under the lease, nobody begins it afterwards."""
        store = self.worker.work.store
        if row.state is TableState.STALE or store.snapshot_history.published_snapshot(row.table_id) is not None:
            return True
        active = store.snapshots.active_snapshot(row.table_id)
        return active is not None and active.exported_snapshot is not None

    def _snapshot(self, row: SourceTable, schema_id: str) -> NewSnapshot:
        known = self.worker.work.store.snapshot_history.snapshots(row.table_id)
        failed = {each.snapshot_id for each in known if each.state in _FAILED}
        return NewSnapshot(
            snapshot_id=next(each for each in _ids(f"empty-{row.table_uuid.hex}") if each not in failed),
            table_id=row.table_id,
            cutoff_offset=encode_position(0),
            cutoff_version="",
            cutoff_time=self.clock(),
            schema_id=schema_id,
        )


def _ids(first: str) -> Iterator[str]:
    yield first
    yield from (f"{first}-{number}" for number in count(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRuns:
    """Applies slices table by table. `empty_lakes`: for a source whose tables have no initial snapshot."""

    store: MetadataStore
    worker: SliceWorker
    empty_lakes: EmptyLakes | None

    def apply(
        self, tables: Sequence[TableName], *, until: datetime | None = None, by_hand: bool = False
    ) -> tuple[TableResult, ...]:
        """Applies each table in turn, through the one Spark driver. Skips tables that pause, except with `by_hand`."""
        return tuple(self._apply(table, until, by_hand=by_hand) for table in tables)

    def _apply(self, table: TableName, until: datetime | None, *, by_hand: bool) -> TableResult:
        found = result_or_error(
            lambda: self._applied(table, until, by_hand=by_hand), table, otherwise="table not applied"
        )
        if isinstance(found, CdcError):
            return TableResult(table=table, applied=None, error=found)
        return TableResult(table=table, applied=found, error=None)

    def _applied(self, table: TableName, until: datetime | None, *, by_hand: bool) -> Applied:
        if not by_hand:
            self._check_pause(table)
        if self.empty_lakes is not None and not self.empty_lakes.begin(table):
            return Applied(outcomes=(), ended=_UNKNOWN)
        return self.worker.slice_to_lake(table, until=until)

    def run(self, table: TableName, *, by_hand: bool = False) -> dict[str, Any]:
        """Applies the waiting slices of one table; returns its report.

        A run succeeds without doing anything when another worker holds the lease and does the work, when the table is
        not registered yet, when it pauses after a failure that an earlier run has reported, and when it waits for a
        wanted snapshot.
        """
        if (left := self._left_alone(table)) is not None:
            return left
        (result,) = self.apply([table], by_hand=by_hand)
        if result.error is not None and not isinstance(result.error, (LeaseBusy, TablePauses)):
            raise result.error
        log.info("slice run ended", **result.row())
        return result.row()

    def backfill(
        self, tables: Sequence[TableName], *, until: datetime | None = None, wait: timedelta = _LEASE_WAIT
    ) -> list[dict[str, Any]]:
        """Applies the waiting slices of each table as far as possible, also of tables that pause.

        Leaves alone tables that are not registered yet and tables that wait for a wanted snapshot, as `run` does.
        `wait`: for how long tables that other workers have, or whose lease was lost, are tried again, after all others
        are done. Afterwards raises one of the errors that stopped tables, preferably one that a later try can solve,
        such as LeaseBusy. Its message names each of these tables with its error.
        """
        reports = {table: left for table in tables if (left := self._left_alone(table)) is not None}
        applied = [table for table in tables if table not in reports]
        results = {result.table: result for result in self.apply(applied, until=until, by_hand=True)}
        deadline = time.monotonic() + wait.total_seconds()
        while (busy := _busy(results.values())) and time.monotonic() < deadline:
            Event().wait(_LEASE_POLL_SECONDS)
            results |= {result.table: result for result in self.apply(busy, until=until, by_hand=True)}
        errors = {table: result.error for table, result in results.items() if result.error is not None}
        if errors:
            error = min(errors.values(), key=lambda found: not (found.retryable or isinstance(found, LeaseBusy)))
            error.args = ("; ".join(f"{table}: {each}" for table, each in errors.items()),)
            raise error
        reports |= {table: result.row() for table, result in results.items()}
        return [reports[table] for table in tables]

    def _left_alone(self, table: TableName) -> dict[str, Any] | None:
        """Returns the report of a table that has nothing to apply yet and needs nobody; None for any other."""
        row = self.store.tables.find(table)
        if row is None:
            return {"table": str(table), "ended": NOT_REGISTERED}
        if row.snapshot_wanted:
            return {"table": str(table), "ended": f"a new snapshot of it follows: {row.state_reason}"}
        return None

    def _check_pause(self, table: TableName) -> None:
        row = self.store.tables.table(table)
        failing = self.store.failures.failing(row.table_id)
        if failing is not None and failing.pauses:
            raise TablePauses(
                f"{table} {'is parked' if row.state is TableState.PARKED else 'pauses'}, its next try comes at"
                f" {failing.next_try_at:%Y-%m-%d %H:%M:%SZ}: {failing.failures} failures in a row since"
                f" {failing.failing_since:%Y-%m-%d %H:%M:%SZ}, the last one: {failing.error}",
                remedy=f"cdc apply {table} tries at once",
            )
