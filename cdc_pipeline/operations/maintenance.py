"""Maintains one table's lake files under the table's lease, so that no slice is applied at the same time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from cdc_pipeline.apply.table_work import TableWork
from cdc_pipeline.errors import CdcError, LakeError, LeaseBusy, StaleEpoch, is_outage
from cdc_pipeline.lake.decay import Optimization
from cdc_pipeline.lake.protocol import NOTHING_APPLIED, LakeTable
from cdc_pipeline.metadata_store.lease_keeper import LeaseKeeper
from cdc_pipeline.metadata_store.states import NO_LAKE, NOT_REGISTERED
from cdc_pipeline.operations.table_errors import result_or_error
from cdc_pipeline.record import TableName
from cdc_pipeline.settings.work import MaintenanceSettings

log = structlog.get_logger()

_FENCE_AGE = timedelta(days=3)
"""Less than half of the time for which the lake's log keeps a commit."""
_EVERY_VERSION = "~"
"""Greater than every version of an ordered stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained:
    """The result for one table. `exit_code`: 0, or the exit code of the error that stopped the table."""

    table: TableName
    ended: str
    files: str | None = None
    seconds: float | None = None
    exit_code: int = 0

    def row(self) -> dict[str, Any]:
        return {"table": str(self.table), "ended": self.ended, "files": self.files, "seconds": self.seconds}


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """Maintains tables of the lake.

    `oldest_version_to_come`: returns the version below which no event of the table can come from the source any more.
    `timeout`: how long it waits for a busy table, of which each claim is shorter as a rule.
    """

    work: TableWork
    oldest_version_to_come: Callable[[TableName], str]
    need: MaintenanceSettings
    timeout: timedelta = timedelta(minutes=1)

    def maintain(self, table: TableName) -> dict[str, Any]:
        """Rewrites files that have decayed, removes tombstones, then deletes files of versions that are not kept.

        One run rewrites at most `need.run_bytes`, but at least one file that needs it; the report says how many files
        are left for the next one.

        A tombstone stays while an older event may still arrive: by a replay or a repair, or in a stream without order.

        Reports a lease that stays busy or is lost, a table that is not registered, or one without a lake, and leaves
        the table to the next run. If files cannot be rewritten, it does the rest before it raises LakeError; if a
        server does not answer, it ends at once.
        """
        return self._maintained(table).row()

    def maintain_each(self, tables: Sequence[TableName]) -> tuple[Maintained, ...]:
        """Maintains the tables one after the other. A table that fails or is busy does not stop the next one."""
        return tuple(self._maintained_or_failed(table) for table in tables)

    def _maintained_or_failed(self, table: TableName) -> Maintained:
        found = result_or_error(lambda: self._maintained(table), table, otherwise="table not maintained")
        if isinstance(found, CdcError):
            return Maintained(table=table, ended=str(found), exit_code=found.exit_code)
        return found

    def _maintained(self, table: TableName) -> Maintained:
        started, exit_code = time.monotonic(), 0
        try:
            ended, files = self._maintain(table)
        except (LeaseBusy, StaleEpoch) as busy:
            ended, files = f"left for the next run: {busy.found}", Optimization()
            exit_code = busy.exit_code
        seconds = round(time.monotonic() - started, 1)
        found = Maintained(table=table, ended=ended, files=str(files), seconds=seconds, exit_code=exit_code)
        log.info("maintenance ended", **found.row())
        return found

    def _maintain(self, table: TableName) -> tuple[str, Optimization]:
        row = self.work.store.tables.find(table)
        if row is None:
            return NOT_REGISTERED, Optimization()
        if row.schema_id is None:  # no event has shown the table's columns yet
            return NO_LAKE, Optimization()
        with self.work.leased_when_free(row.table_id, time.monotonic() + self.timeout.total_seconds()) as held:
            lake_table = self.work.lake_table(table)
            if self.work.lake.read_version(lake_table) is None:
                return NO_LAKE, Optimization()
            self.work.lake.keep_fence(lake_table, older_than=_FENCE_AGE)
            files, failure = self._optimize(lake_table)
            ended = self._delete(held[1], lake_table, row.table_id)
        if failure is not None:
            raise failure
        return ended, files

    def _optimize(self, table: LakeTable) -> tuple[Optimization, CdcError | None]:
        try:
            return self.work.lake.optimize(table, self.need), None
        except Exception as error:  # every error but an outage is caught, so that the rest of maintenance is done
            if is_outage(error):
                raise
            log.exception("files were not rewritten", table=str(table.name))
            return Optimization(), error if isinstance(error, CdcError) else LakeError.unforeseen(error)

    def _delete(self, keeper: LeaseKeeper, table: LakeTable, table_id: int) -> str:
        """Deletes tombstones and unused files. Returns how that ended."""
        keeper.check()
        below = self._purgeable(table, table_id)
        if below:
            self.work.lake.purge(table, below)
        keeper.check()
        if self.work.store.snapshots.active_snapshot(table_id) is not None:
            return "done, but no file is deleted: a snapshot is under way, and may have written some"
        self.work.lake.vacuum(table)
        return "done"

    def _purgeable(self, table: LakeTable, table_id: int) -> str:
        """Returns the version below which no tombstone is needed any more; "" when all tombstones have to stay.

        In an ordered stream all can go, unless a late slice may come, or one may come again: a rewind that was killed
        left the lake without slices that the metadata store calls applied. A horizon is used once the lake has every
        slice that was registered before the horizon was raised.
        """
        fence = self.work.lake.read_fence(table)
        applied = NOTHING_APPLIED if fence is None else fence.number
        if table.ordered:
            is_behind = applied < self.work.store.lake_positions.lake_position(table_id).applied_through
            return "" if is_behind or self.work.store.slices.awaits_late(table_id) else _EVERY_VERSION
        row = self.work.store.tables.table(table.name)
        if row.horizon_number > applied:
            return ""
        oldest = self.oldest_version_to_come(table.name)
        risen, number = self.work.store.tombstone_horizons.promise(table_id, oldest)
        return row.horizon if number > applied else risen
