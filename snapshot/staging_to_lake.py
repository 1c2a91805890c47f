"""staging_to_lake: the staged files of one data partition -> sorted lake files, and all of them -> one commit."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cdc_pipeline.lake.protocol import Compaction, DataFile, Lake, LakeTable
from cdc_pipeline.metadata_store.rows import Snapshot, SnapshotTask
from cdc_pipeline.metadata_store.snapshot_tasks import NewTask
from cdc_pipeline.metadata_store.states import TaskKind


def plan_compaction(staged: Sequence[SnapshotTask], target_file_bytes: int) -> list[NewTask]:
    """One task per data partition, in the order of their names; `staged` are the finished staging tasks.

    A partition becomes as many files as its staged bytes hold the target size, rounded up.
    """
    partitions: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for task in staged:
        for file in (task.output or {})["files"]:
            partitions[json.dumps(file["partition"])].append(file)
    return [
        NewTask(
            kind=TaskKind.COMPACT,
            ordinal=ordinal,
            input={
                "partition": json.loads(partition),
                "staged_keys": [file["key"] for file in files],
                "target_files": max(1, -(-sum(file["size_bytes"] for file in files) // target_file_bytes)),
            },
        )
        for ordinal, (partition, files) in enumerate(sorted(partitions.items()))
    ]


def staging_to_lake(lake: Lake, table: LakeTable, snapshot: Snapshot, task: SnapshotTask) -> tuple[DataFile, ...]:
    """Sorted by id, so that later slices find their rows in few files. Invisible until published."""
    return lake.compact(
        table,
        Compaction(
            snapshot_id=snapshot.snapshot_id,
            attempt=f"{task.ordinal}-{task.attempt}",
            staged_keys=tuple(task.input["staged_keys"]),
            target_files=task.input["target_files"],
            version=snapshot.cutoff_version,
        ),
    )


def to_json(files: Sequence[DataFile]) -> dict[str, Any]:
    return {"files": [asdict(file) for file in files]}


def data_files(compacted: Sequence[SnapshotTask]) -> tuple[DataFile, ...]:
    """What the finished compaction tasks wrote."""
    documents = [file for task in compacted for file in (task.output or {})["files"]]
    return tuple(
        DataFile(**{**file, "partition_values": tuple((name, value) for name, value in file["partition_values"])})
        for file in documents
    )
