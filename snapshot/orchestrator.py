"""The orchestrator of snapshots: holds the cutoff, plans and polls tasks, publishes each table whose tasks are done."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Event
from uuid import UUID

import structlog

from cdc_pipeline.apply.table_work import TableWork
from cdc_pipeline.errors import CdcError, LakeError, LeaseBusy, SnapshotError, StaleEpoch
from cdc_pipeline.metadata_store.snapshots.records import Snapshot
from cdc_pipeline.metadata_store.states import FINISHED_SNAPSHOTS, SnapshotState, TaskKind, TaskState
from cdc_pipeline.operations.source_setup.registered import known_table
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.copied_rows import HeldPosition
from cdc_pipeline.sources.known import FoundTable
from cdc_pipeline.sources.protocol import TableCopy
from snapshot.cutoff import abandon_exports, abandoned, copies_files, create_snapshot, run_of
from snapshot.exports import SnapshotRows
from snapshot.hand_offs import SnapshotFile, has_staged, new_tasks, output_of
from snapshot.patience import LONGEST_AWAY, Patience, each_advanced
from snapshot.staging_to_lake import StagingToLake, plan_compaction

log = structlog.get_logger()

_BUSY_SECONDS = 0.5
_FIRST_LOOKS = 20
"""So often the first try looks for leases while it holds others: for ten seconds."""
_SHORTEST_PAUSE_SECONDS = 0.1
_AWAY_PAUSE_SECONDS = 10.0
_MOST_FAILURES = 3
_PURPOSE = "snapshot"
"""The purpose that positions of the source are held for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOrchestrator:
    """Runs snapshots. Safe to kill: a new one resumes snapshots whose export was complete and restarts the others."""

    work: TableWork
    source: SnapshotRows
    snapshot_file_bytes: int
    target_file_bytes: int
    poll_interval: timedelta
    staging_to_lake: StagingToLake
    clock: Callable[[], datetime]
    new_id: Callable[[], UUID]
    found: dict[str, FoundTable] = field(default_factory=dict)
    """By snapshot id, the table that is being exported, as of its cutoff."""
    longest_away: timedelta = LONGEST_AWAY
    """A store, of metadata or objects, or a lake that is away for so long ends a run that exports, without its rows."""

    def run(
        self, tables: Sequence[TableName], stop: Event, check: Callable[[], None] = lambda: None
    ) -> tuple[Snapshot, ...]:
        """Runs one snapshot per table until all have ended or `stop` is set; returns their states at that time.

        `check` is called between two looks, also for a lease; it raises an error if there are no worker slots any more.

        All snapshots that begin in this run share one cutoff. A table that fails does not stop the others. Raises
        SnapshotError if another orchestrator exports one of the tables, and any error of an outage.
        """
        ids = {name: self._resumable(name) for name in tables}
        fresh = [name for name, snapshot_id in ids.items() if snapshot_id is None]
        with ExitStack() as holding:
            if fresh:
                run_id = self.new_id().hex[:8]
                with ExitStack() as leases:
                    self._lease_tables(leases, fresh, stop, check)
                    cutoff = holding.enter_context(self.source.hold_position(_PURPOSE, name=run_id))
                    holding.callback(abandon_exports, self.work.store, fresh, run_id)
                    for name in fresh:
                        self.source.check_complete(self.work.store.tables.table(name), cutoff)
                    with self.source.copy_at(cutoff.exported) as copy:
                        ids.update((name, self._begin(name, cutoff, copy, run_id)) for name in fresh)
            wanted = [snapshot_id for snapshot_id in ids.values() if snapshot_id is not None]
            return self._poll([self.work.store.snapshots.snapshot(each) for each in wanted], holding, stop, check)

    def _poll(
        self, snapshots: Sequence[Snapshot], holding: ExitStack, stop: Event, check: Callable[[], None]
    ) -> tuple[Snapshot, ...]:
        """Advances the snapshots until all have ended. Closes `holding` when no export needs the cutoff any more.

        After each change it looks again soon, and then more and more seldom, up to the poll interval: small tables are
        done within a second, and large ones take hours. It works at most a third of the time. What failed is tried
        again after the whole poll interval. A store or lake that is away for some tables is looked at again after ten
        seconds at most, while an export needs the cutoff; any other run can go on where this one ends.
        """
        failures, patience = Counter[str](), Patience(self.longest_away)
        longest, pause = self.poll_interval.total_seconds(), 0.0
        while not stop.wait(pause) and not all(map(_has_ended, snapshots)):
            began, known, before = time.monotonic(), failures.total(), snapshots
            snapshots, outage = each_advanced(snapshots, lambda each: self._advanced(each, failures))
            if outage is not None:
                if not _any_exports(before):  # the look at which the last one ends is repeated once
                    raise outage
                patience.endure(outage)
                log.warning("a store is away", found=outage.found)
                pause = min(longest, _AWAY_PAUSE_SECONDS)
                continue
            patience.answered()
            if not _any_exports(snapshots):
                holding.close()
            if not all(map(_has_ended, snapshots)):
                check()
            shortest = max(_SHORTEST_PAUSE_SECONDS, 2 * (time.monotonic() - began))
            pause = shortest if snapshots != before else max(shortest, 2 * pause)
            pause = longest if failures.total() > known else min(longest, pause)
        return tuple(snapshots)

    def _lease_tables(
        self, leases: ExitStack, tables: Sequence[TableName], stop: Event, check: Callable[[], None]
    ) -> None:
        """Takes the leases of the tables, so that no worker applies slices of them before the cutoff is registered.

        The cutoff is then after every applied slice. Later, workers stop at the cutoff by themselves. A table with a
        long claim holds up the others only for some seconds: then their leases are given back, it is waited for alone,
        and taken first. Each try is twice as patient, so there is an end also to tables that are busy by turns.
        """
        order, looks = sorted(tables), _FIRST_LOOKS
        while (busy := self._busy_table(leases, order, looks, stop, check)) is not None:
            leases.close()
            order = [busy, *(name for name in order if name != busy)]
            looks *= 2

    def _busy_table(
        self, leases: ExitStack, order: Sequence[TableName], looks: int, stop: Event, check: Callable[[], None]
    ) -> TableName | None:
        """Takes leases in this order. Returns the table that is still busy after so many looks, None if it has all.

        While nothing is held yet, it looks without end. Raises LeaseBusy when `stop` is set.
        """
        for name in order:
            table_id, is_leased = self.work.store.tables.table(name).table_id, False
            while not is_leased:
                try:
                    leases.enter_context(self.work.leased(table_id))
                    is_leased = True
                except LeaseBusy:
                    looks -= name != order[0]
                    if looks < 0:
                        return name
                    check()
                    if stop.wait(_BUSY_SECONDS):
                        raise
        return None

    def _resumable(self, name: TableName) -> str | None:
        active = self.work.store.snapshots.active_snapshot(self.work.store.tables.table(name).table_id)
        if active is None:
            return None
        if active.state is not SnapshotState.EXPORTING or active.exported_snapshot is None:
            self.source.check_resumable(name, active.exported_snapshot)
            return active.snapshot_id
        if self.source.is_held(_PURPOSE, name=run_of(active.snapshot_id)) or copies_files(self.work.store, active):
            raise SnapshotError(
                f"the snapshot {active.snapshot_id} of {name} is being exported by another orchestrator",
                expected="one orchestrator per table",
                remedy="wait for it, or stop it; if it was killed, try again after worker.lease",
            )
        found = abandoned(self.work.store, active)
        return None if found.state in FINISHED_SNAPSHOTS else found.snapshot_id

    def _begin(self, name: TableName, cutoff: HeldPosition, copy: TableCopy, run_id: str) -> str:
        row = self.work.store.tables.table(name)
        snapshot_id = f"{self.clock():%Y%m%dT%H%M%SZ}-{run_id}-{row.table_id}"
        try:
            found = copy.description(known_table(self.work.store, row))
            parts = copy.parts(name, self.snapshot_file_bytes)
        except CdcError as error:
            if _concerns_all(error):
                raise
            return self._failed(create_snapshot(self.work.store, row, snapshot_id, cutoff), str(error)).snapshot_id
        if found is not None:
            self.found[snapshot_id] = found
        create_snapshot(self.work.store, row, snapshot_id, cutoff, found)
        tasks = new_tasks(TaskKind.EXPORT, [dict(part) for part in parts])
        self.work.store.snapshot_tasks.add_tasks(snapshot_id, tasks)
        log.info("snapshot begun", table=str(name), snapshot_id=snapshot_id, cutoff=cutoff.offset, files=len(tasks))
        return snapshot_id

    def _advanced(self, snapshot: Snapshot, failures: Counter[str]) -> Snapshot:
        """Advances one snapshot by a state if its finished tasks allow it, or as somebody else has moved it meanwhile.

        An error fails only this snapshot; a retryable error only after several tries. `failures`: how often each
        snapshot has failed so far in this run. Raises errors that concern every table: of an outage, and StaleEpoch.
        """
        if _has_ended(snapshot):
            return snapshot
        try:
            snapshot = self.work.store.snapshots.snapshot(snapshot.snapshot_id)
            return self._advance(snapshot)
        except CdcError as error:
            if _concerns_all(error):
                raise
            return self._not_advanced(snapshot, error, failures)
        except Exception as error:  # every error of a snapshot is caught, so that other tables continue
            log.exception("snapshot not advanced", snapshot_id=snapshot.snapshot_id)
            return self._not_advanced(snapshot, LakeError.unforeseen(error), failures)

    def _not_advanced(self, snapshot: Snapshot, error: CdcError, failures: Counter[str]) -> Snapshot:
        failures[snapshot.snapshot_id] += 1
        if error.retryable and failures[snapshot.snapshot_id] < _MOST_FAILURES:
            log.warning("snapshot is tried again", snapshot_id=snapshot.snapshot_id, error=str(error))
            return snapshot
        return self._failed(snapshot, str(error))

    def _failed(self, snapshot: Snapshot, error: str) -> Snapshot:
        """Marks the snapshot as failed, unless somebody else has moved it meanwhile, or the lake shows it.

        One that was removed together with its table has failed for this run.
        """
        log.error("snapshot failed", snapshot_id=snapshot.snapshot_id, error=error)
        if snapshot.state is SnapshotState.PUBLISHING:
            return self._not_published(snapshot, error)
        try:
            return self.work.store.snapshots.set_snapshot_state(
                snapshot.snapshot_id, SnapshotState.FAILED, error=error, seen=snapshot.state
            )
        except SnapshotError:  # there is none any more
            return replace(snapshot, state=SnapshotState.FAILED, error=error)

    def _not_published(self, snapshot: Snapshot, error: str) -> Snapshot:
        """Marks the snapshot as failed if the lake does not show it. Otherwise this run leaves it as it is.

        `error` of a snapshot that is left says why; the next run goes on with it.
        """
        try:
            known = self.staging_to_lake.fail(snapshot, error)
        except LeaseBusy:
            return snapshot  # another process may be publishing it
        except CdcError as unknown:
            if _concerns_all(unknown):
                raise
            return replace(snapshot, error=f"{error}; and it is not known whether the lake shows it: {unknown}")
        if known.state is not SnapshotState.PUBLISHING:
            return known
        return replace(known, error=f"the lake shows it, and it is not completed yet: {error}")

    def _advance(self, snapshot: Snapshot) -> Snapshot:
        """Moves the snapshot to the next state if its finished tasks allow it."""
        match snapshot.state:
            case SnapshotState.EXPORTING:
                return self._after(snapshot, TaskKind.EXPORT, self._plan_staging)
            case SnapshotState.STAGING:
                return self._after(snapshot, TaskKind.STAGE, self._plan_compaction)
            case SnapshotState.COMPACTING:
                return self._after(snapshot, TaskKind.COMPACT, lambda done: self._moved(done, SnapshotState.PUBLISHING))
            case SnapshotState.PUBLISHING:
                with suppress(LeaseBusy, StaleEpoch):  # the next look finds what the other process has done
                    return self.staging_to_lake.publish(snapshot)
                return snapshot
            case SnapshotState.PUBLISHED | SnapshotState.FAILED | SnapshotState.ABANDONED:
                return snapshot

    def _after(self, snapshot: Snapshot, kind: TaskKind, then: Callable[[Snapshot], Snapshot]) -> Snapshot:
        tasks = self.work.store.snapshot_tasks
        states = tasks.counts(snapshot.snapshot_id, kind).keys()
        if TaskState.FAILED in states:
            failed, *_ = tasks.tasks(snapshot.snapshot_id, kind, state=TaskState.FAILED)
            return self._failed(snapshot, f"{kind} task {failed.ordinal}: {failed.error}")
        return snapshot if states - {TaskState.DONE} else then(snapshot)

    def _plan_staging(self, snapshot: Snapshot) -> Snapshot:
        exported = self.work.store.snapshot_tasks.tasks(snapshot.snapshot_id, TaskKind.EXPORT)
        found = self.found.get(snapshot.snapshot_id)
        if found is not None:
            self.source.check_copied(found, len(exported))
        unstaged = [output_of(task, SnapshotFile) for task in exported if not has_staged(task)]
        self.work.store.snapshot_tasks.add_tasks(snapshot.snapshot_id, new_tasks(TaskKind.STAGE, unstaged))
        return self._moved(snapshot, SnapshotState.STAGING)

    def _plan_compaction(self, snapshot: Snapshot) -> Snapshot:
        tasks = self.work.store.snapshot_tasks
        exported, staged = (tasks.tasks(snapshot.snapshot_id, kind) for kind in (TaskKind.EXPORT, TaskKind.STAGE))
        plan = plan_compaction([*filter(has_staged, exported), *staged], self.target_file_bytes)
        self.work.lake.create_table(self.staging_to_lake.table(snapshot), snapshot_id=snapshot.snapshot_id)
        tasks.add_tasks(snapshot.snapshot_id, plan)
        return self._moved(snapshot, SnapshotState.COMPACTING)

    def _moved(self, snapshot: Snapshot, state: SnapshotState) -> Snapshot:
        return self.work.store.snapshots.set_snapshot_state(snapshot.snapshot_id, state, seen=snapshot.state)


def _has_ended(snapshot: Snapshot) -> bool:
    """Whether this run has nothing more to do for the snapshot: it is finished, or it is left to the next run."""
    return snapshot.state in FINISHED_SNAPSHOTS or snapshot.error is not None


def _any_exports(snapshots: Sequence[Snapshot]) -> bool:
    return any(each.state is SnapshotState.EXPORTING for each in snapshots)


def _concerns_all(error: CdcError) -> bool:
    return error.outage or isinstance(error, StaleEpoch)
