"""A worker slot: claims the tasks of running snapshots one by one until those snapshots have ended."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Event
from typing import Any

import structlog

from cdc_pipeline.errors import CdcError, LakeError, SnapshotError, StaleEpoch
from cdc_pipeline.metadata_store.lease_keeper import renewed
from cdc_pipeline.metadata_store.snapshots.quarantined_rows import QuarantinedRow
from cdc_pipeline.metadata_store.snapshots.records import Snapshot, SnapshotTask
from cdc_pipeline.metadata_store.snapshots.snapshot_tasks import MOST_ATTEMPTS
from cdc_pipeline.metadata_store.states import SnapshotState, TaskKind
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.sources.copied_rows import UnfitRow
from cdc_pipeline.sources.event_texts import snapshot_row_payload, with_numbers
from cdc_pipeline.steps import OnStep
from snapshot.exports import OpensCopies
from snapshot.hand_offs import CompactedFiles, SnapshotFile, StagedFiles, StagedPartition, input_of, to_json
from snapshot.snapshot_to_staging import RUN_BYTES, SnapshotToStaging
from snapshot.staging_to_lake import StagingToLake

log = structlog.get_logger()

_SHORTEST_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The output of a finished task, with its number of rows and bytes."""

    output: dict[str, Any]
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWorker:
    """A worker slot. Safe to kill at any step: another slot claims its task once the task lease has expired.

    `idle_wait`: the longest pause between two looks for a task. `partitioned_run_bytes`: the `run_bytes` of a table
    with data partitions, each of which gets a file per run.
    """

    slot: str
    source: OpensCopies
    task_lease: timedelta
    idle_wait: timedelta
    store: MetadataStore
    objects: ObjectStore
    staging_to_lake: StagingToLake
    on_step: OnStep
    partitioned_run_bytes: int = RUN_BYTES

    def run(
        self,
        tables: Sequence[TableName],
        since: datetime,
        stop: Event,
        check: Callable[[], None] = lambda: None,
        answered: Callable[[], None] = lambda: None,
    ) -> int:
        """Claims and does tasks until every table has a snapshot that ended at or after `since`, or `stop` is set.

        Returns the number of tasks done. `check` is called while there is no task; it raises an error if there is no
        orchestrator any more. `answered` is called whenever the metadata store has answered a look for tasks.
        """
        table_ids = [self.store.tables.table(name).table_id for name in tables]
        done, pause = 0, _SHORTEST_PAUSE_SECONDS
        while not stop.is_set():
            active = self.store.snapshots.active_snapshots(table_ids)
            task = self._claimed(active)
            answered()
            if task is not None:
                self._work(task, next(found for found in active if found.snapshot_id == task.snapshot_id))
                done, pause = done + 1, _SHORTEST_PAUSE_SECONDS
            elif len(self.store.snapshot_history.ended_since(table_ids, since)) == len(table_ids):
                break
            else:
                check()
                stop.wait(pause)
                pause = min(2 * pause, self.idle_wait.total_seconds())
        return done

    def _claimed(self, active: Sequence[Snapshot]) -> SnapshotTask | None:
        """Claims an export of any table first: the source holds its position until the last one is done."""
        exporting = [each for each in active if each.state is SnapshotState.EXPORTING]
        return self._claim(exporting, [TaskKind.EXPORT]) or self._claim(active, list(TaskKind))

    def _claim(self, snapshots: Sequence[Snapshot], kinds: Sequence[TaskKind]) -> SnapshotTask | None:
        if not snapshots:
            return None
        ids = [each.snapshot_id for each in snapshots]
        return self.store.snapshot_tasks.claim_task(
            slot=self.slot, duration=self.task_lease, snapshot_ids=ids, kinds=kinds
        )

    def _work(self, task: SnapshotTask, snapshot: Snapshot) -> None:
        def renew() -> object:
            return self.store.snapshot_tasks.renew_task(task, duration=self.task_lease)

        what = f"{task.kind} task {task.ordinal} of snapshot {task.snapshot_id}"
        try:
            with renewed(renew, self.task_lease, sent=time.monotonic(), what=what):
                done = self._do(task, snapshot)
            self.store.snapshot_tasks.finish_task(task, output=done.output, rows=done.rows, bytes_=done.size_bytes)
            log.info("snapshot task done", task=what, rows=done.rows, slot=self.slot)
        except StaleEpoch as error:
            log.warning("snapshot task taken over", task=what, found=error.found)
        except CdcError as error:
            self._failed(task, what, error)
        except Exception as error:  # every error of a task is caught, so that the tasks of other tables continue
            log.exception("snapshot task failed", task=what)
            self._failed(task, what, LakeError.unforeseen(error))

    def _failed(self, task: SnapshotTask, what: str, error: CdcError) -> None:
        again = error.retryable and task.attempt < MOST_ATTEMPTS
        log.warning("snapshot task failed", task=what, error=str(error), again=again)
        with suppress(StaleEpoch):  # done, but the answer was lost; or another slot has claimed it
            self.store.snapshot_tasks.fail_task(task, error=str(error), again=again)

    def _do(self, task: SnapshotTask, snapshot: Snapshot) -> Done:
        match task.kind:
            case TaskKind.EXPORT:
                return self._export(task, snapshot)
            case TaskKind.STAGE:
                staged = self._snapshot_to_staging(snapshot).stage(input_of(task, SnapshotFile))
                return _wrote(staged)
            case TaskKind.COMPACT:
                attempt = f"{task.ordinal}-{task.attempt}"
                return _wrote(self.staging_to_lake.compact(snapshot, input_of(task, StagedPartition), attempt))

    def _snapshot_to_staging(self, snapshot: Snapshot) -> SnapshotToStaging:
        table = self.staging_to_lake.table(snapshot)
        return SnapshotToStaging(
            table=table.name,
            schema=table.schema,
            snapshot_id=snapshot.snapshot_id,
            update_time=table.update_time,
            partition_by=table.partition_by,
            source=self.source,
            objects=self.objects,
            on_step=self.on_step,
            run_bytes=self.partitioned_run_bytes if table.partition_by else RUN_BYTES,
        )

    def _export(self, task: SnapshotTask, snapshot: Snapshot) -> Done:
        if snapshot.exported_snapshot is None:
            raise SnapshotError(
                f"the snapshot {snapshot.snapshot_id} names no exported snapshot",
                expected="the name under which the source shows its rows at the cutoff",
                remedy="run cdc snapshot again: it starts over at a new position",
            )
        staging = self._snapshot_to_staging(snapshot)
        exported = staging.export(snapshot.exported_snapshot, task.input, f"{task.ordinal:06d}")
        if exported.unfit:
            self._quarantine(snapshot, task, exported.unfit, staging.schema)
        return Done(output=to_json(exported.output), rows=exported.rows, size_bytes=exported.size_bytes)

    def _quarantine(
        self, snapshot: Snapshot, task: SnapshotTask, unfit: Sequence[UnfitRow], schema: TableSchema
    ) -> None:
        """Quarantines rows; durable on return. The rows of a task are quarantined once, however often it is tried."""
        rows = [
            QuarantinedRow(
                column=row.column,
                reason=row.reason,
                payload=with_numbers(snapshot_row_payload(row.texts, snapshot.cutoff_time), schema),
            )
            for row in unfit
        ]
        self.store.quarantined_rows.add(snapshot, task.ordinal, rows)
        log.warning("rows quarantined", snapshot_id=snapshot.snapshot_id, rows=len(rows), first=rows[0].reason)


def _wrote(left: StagedFiles | CompactedFiles) -> Done:
    return Done(
        output=to_json(left),
        rows=sum(file.rows for file in left.files),
        size_bytes=sum(file.size_bytes for file in left.files),
    )
