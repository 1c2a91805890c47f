"""staging_to_lake: compacts each data partition's staged files into lake files, and publishes them by one commit."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from cdc_pipeline.apply.publishing import publish
from cdc_pipeline.apply.table_work import TableWork
from cdc_pipeline.areas import quarantined_rows_key
from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.lake.protocol import Compaction, DataFile, Fence, LakeTable
from cdc_pipeline.metadata_store.snapshots.records import Snapshot, SnapshotTask
from cdc_pipeline.metadata_store.snapshots.snapshot_tasks import NewTask
from cdc_pipeline.metadata_store.states import SnapshotState, TaskKind
from cdc_pipeline.steps import step
from snapshot.exports import Export
from snapshot.hand_offs import (
    CompactedFiles,
    StagedFile,
    StagedFiles,
    StagedPartition,
    input_of,
    new_tasks,
    output_of,
)

log = structlog.get_logger()


def plan_compaction(staged: Sequence[SnapshotTask], target_file_bytes: int) -> list[NewTask]:
    """Returns one task per data partition, in the order of their names.

    `staged`: the finished tasks that wrote staging files: staging tasks, and the export tasks of tables without data
    partitions or of exported files.

    The number of lake files of a partition is its staged bytes divided by the target size, rounded up.
    """
    partitions: dict[str, list[StagedFile]] = defaultdict(list)
    for task in staged:
        for file in output_of(task, StagedFiles).files:
            partitions[json.dumps(file.partition)].append(file)
    inputs = [
        StagedPartition(
            partition=files[0].partition,
            staged_keys=tuple(file.key for file in files),
            target_files=max(1, -(-sum(file.size_bytes for file in files) // target_file_bytes)),
        )
        for _, files in sorted(partitions.items())
    ]
    return new_tasks(TaskKind.COMPACT, inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingToLake:
    """The verb: `compact` each data partition, then `publish` a whole snapshot by one commit.

    Compaction is one task per data partition; readers see nothing of it until the commit. Both may be repeated after a
    crash.
    """

    work: TableWork

    def table(self, snapshot: Snapshot) -> LakeTable:
        """Returns the snapshot's table with the columns of the snapshot; the stream may have other columns by now."""
        table = self.work.lake_table(self.work.store.tables.table_by_id(snapshot.table_id).name)
        return replace(table, schema=self.work.store.tables.schema(snapshot.table_id, snapshot.schema_id))

    def compact(self, snapshot: Snapshot, staged: StagedPartition, attempt: str) -> CompactedFiles:
        """Writes the staged rows of one data partition into lake files; invisible to readers until published.

        The rows are sorted by id, so that the rows of a later slice are in few files. `attempt` is unique within the
        snapshot, so that a worker that lost its task never writes into the files of the next attempt.
        """
        compaction = Compaction(
            snapshot_id=snapshot.snapshot_id,
            attempt=attempt,
            staged_keys=staged.staged_keys,
            target_files=staged.target_files,
            version=snapshot.cutoff_version,
            partition=staged.partition,
        )
        return CompactedFiles(files=self.work.lake.compact(self.table(snapshot), compaction))

    def publish(self, snapshot: Snapshot) -> Snapshot:
        """Replaces the table's content by one commit with the fence at the cutoff, and then records the publication.

        Both are durable on return. Raises LeaseBusy while another process works on the table, SnapshotError if
        several rows of exported files have one id.
        """
        compacted = self.work.store.snapshot_tasks.tasks(snapshot.snapshot_id, TaskKind.COMPACT)
        with self.work.leased(snapshot.table_id) as held:
            known = self.work.store.snapshots.snapshot(snapshot.snapshot_id)
            if known.state is not SnapshotState.PUBLISHING:
                return known
            # under the lease, so a process that lost it sets nothing back
            fence = self.work.lake.read_fence(self.table(snapshot))
            if _is_of_files(snapshot) and not _shows(fence, snapshot):
                self._check_ids(snapshot, compacted)
            published = publish(
                self.work,
                held,
                self.table(snapshot),
                snapshot,
                fence=self._fence_number(snapshot, fence),
                files=data_files(compacted),
                quarantined=self._put_quarantined_rows(snapshot),
                replaces=None if fence is None or not _is_of_files(snapshot) else fence.lake_version,
            )
        log.info(
            "snapshot published",
            snapshot_id=published.snapshot_id,
            rows=published.rows,
            lake_version=published.lake_version,
        )
        return published

    def fail(self, snapshot: Snapshot, error: str) -> Snapshot:
        """Marks a snapshot that could not be published as failed. Returns it as it is if the lake shows it.

        A failed snapshot in the lake would stop its table: no slice is applied behind rows that the store does not
        know as published. Raises LeaseBusy while another process works on the table: it may be publishing.
        """
        with self.work.leased(snapshot.table_id):
            if _shows(self.work.lake.read_fence(self.table(snapshot)), snapshot):
                return self.work.store.snapshots.snapshot(snapshot.snapshot_id)
            return self.work.store.snapshots.set_snapshot_state(
                snapshot.snapshot_id, SnapshotState.FAILED, error=error, seen=SnapshotState.PUBLISHING
            )

    def _fence_number(self, snapshot: Snapshot, fence: Fence | None) -> int:
        """Returns the last slice that the snapshot contains; the one in the lake if `fence` shows the snapshot already.

        Slices of before the cutoff may have come since that commit. They wait behind it: with another number the
        commit would be repeated, and readers find no row in one that removes and adds the same files.
        """
        if fence is not None and _shows(fence, snapshot):
            return fence.number
        return self.work.store.snapshots.fence_at(snapshot.table_id, snapshot.cutoff_offset)

    def _check_ids(self, snapshot: Snapshot, compacted: Sequence[SnapshotTask]) -> None:
        """Raises SnapshotError if several rows have one id. In a database none has; exported files may overlap.

        Only the log has the id's values: the error is shown to people who may not see a row.
        """
        table = self.table(snapshot)
        staged = [key for task in compacted for key in input_of(task, StagedPartition).staged_keys]
        found = self.work.lake.repeated_id(table, staged) if table.schema.key else None
        if found is not None:
            values = ", ".join(f"{name} = {value}" for name, value in zip(table.schema.key, found, strict=True))
            log.error("several exported rows have one id", snapshot_id=snapshot.snapshot_id, id=f"{values:.300}")
            raise SnapshotError(
                f"a value of the id ({', '.join(table.schema.key)}) is in several rows of the exported files",
                expected="one row per id, from files that do not overlap",
                remedy="name the files of one export with --from, or list the whole id of the table in pipeline.yml",
            )

    def _put_quarantined_rows(self, snapshot: Snapshot) -> int:
        """Puts the snapshot's quarantined rows into the bucket, for `cdc rebuild`; returns the number of these rows.

        A person may have corrected one since an earlier try, so that the rows take the place of what that put.
        """
        rows = [
            {
                "quarantine_id": entry.quarantine_id,
                "place": entry.place,
                "column": entry.column,
                "reason": entry.reason,
                "payload": entry.payload,
            }
            for entry in self.work.store.quarantined_rows.of_snapshot(snapshot)
        ]
        if rows:
            key = quarantined_rows_key(self.work.store.tables.table_by_id(snapshot.table_id).name, snapshot.snapshot_id)
            with step(self.work.on_step, "kept_rows.put"):
                self.work.objects.overwrite(key, json.dumps(rows, separators=(",", ":")).encode())
        return len(rows)


def _is_of_files(snapshot: Snapshot) -> bool:
    return snapshot.exported_snapshot is not None and Export.of(snapshot.exported_snapshot) is not None


def _shows(fence: Fence | None, snapshot: Snapshot) -> bool:
    return fence is not None and fence.snapshot_id == snapshot.snapshot_id


def data_files(compacted: Sequence[SnapshotTask]) -> tuple[DataFile, ...]:
    """Returns the lake files that the finished compaction tasks wrote."""
    return tuple(file for task in compacted for file in output_of(task, CompactedFiles).files)
