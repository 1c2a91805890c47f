"""The actions of a commit without Spark that adds files, and marks the rows that they replace in deletion vectors."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
import pyarrow.parquet
from pyroaring import BitMap64

from cdc_pipeline.lake.deletion_vectors import vector_file
from cdc_pipeline.lake.delta_log import Action
from cdc_pipeline.lake.fence import commit_info, fence_action
from cdc_pipeline.lake.lake_files import LakeFiles
from cdc_pipeline.lake.protocol import DataFile
from cdc_pipeline.lake.publication import add, remove
from cdc_pipeline.record import ClaimCounts
from cdc_pipeline.steps import OnStep, step


def rows_commit(
    files: LakeFiles,
    operation: str,
    fence_number: int,
    user_metadata: str,
    counts: ClaimCounts,
    deleted: Mapping[str, BitMap64],
    written: Sequence[DataFile],
    *,
    now: datetime,
    on_step: OnStep,
) -> list[Action]:
    """Returns the actions for the version right after that of `files`. `deleted`: path -> indexes of replaced rows.

    The file of the new deletion vectors is durable on return; no commit refers to it yet.
    """
    state, milliseconds = files.state, int(now.timestamp() * 1000)
    info = commit_info(operation=operation, user_metadata=user_metadata, read_version=state.version, now=now)
    info["commitInfo"]["operationMetrics"] = {
        "numTargetRowsInserted": str(counts.inserted),
        "numTargetRowsUpdated": str(counts.updated),
        "numTargetRowsDeleted": str(counts.deleted),
    }
    vectors = {path: dead | deleted[path] for path, dead in files.vectors(deleted)}
    old = {path: files.file(path) for path in vectors}
    rows_of = {path: _records(files, old[path]) for path in vectors}
    marked = {path: rows for path, rows in vectors.items() if len(rows) < rows_of[path]}
    actions = [info, fence_action(files.table.app_id, fence_number, now)]
    actions += [remove(file, milliseconds) for file in old.values()]
    if marked:
        vector_path, content, descriptors = vector_file(marked)
        actions += [_marked(old[path], rows_of[path], descriptors[path]) for path in marked]
        with step(on_step, "lake_vectors.put"):
            files.store.put_if_absent(f"{files.folder}/{vector_path}", content)
    return actions + [add(files.table, file, milliseconds) for file in written]


def _records(files: LakeFiles, file: Action) -> int:
    """Counts the rows of a data file, deleted ones included. Reads the file's footer if the log has no statistics."""
    known = json.loads(file.get("stats") or "{}").get("numRecords")
    if known is not None:
        return int(known)
    filesystem, root = files.store.filesystem()
    with filesystem.open_input_file(f"{root}/{files.key_of(file['path'])}") as content:
        return int(pyarrow.parquet.read_metadata(content).num_rows)


def _marked(file: Action, records: int, vector: Action) -> Action:
    """Returns the `add` action of a file with a new deletion vector.

    Its minimum and maximum may now be those of deleted rows, so the bounds are no longer tight.
    """
    stats = msgspec.json.decode(file.get("stats") or "{}", type=dict[str, msgspec.Raw])
    stats |= {"numRecords": msgspec.Raw(str(records).encode()), "tightBounds": msgspec.Raw(b"false")}
    return {"add": {**file, "dataChange": True, "stats": msgspec.json.encode(stats).decode(), "deletionVector": vector}}
