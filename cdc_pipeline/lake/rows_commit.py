"""Commits new files, and rows that they replace, in one commit that the pipeline writes itself, without Spark.

The replaced rows are marked in deletion vectors. The commit becomes exactly the version after the one that was read, or
it fails.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow.parquet
from pyroaring import BitMap64

from cdc_pipeline.lake.claim_changes import Counts
from cdc_pipeline.lake.deletion_vectors import vector_file
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.fence import commit_info, fence_action
from cdc_pipeline.lake.lake_files import LakeFiles
from cdc_pipeline.lake.protocol import Clock, DataFile
from cdc_pipeline.lake.publication import add, remove
from cdc_pipeline.steps import OnStep, step


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsCommit:
    """Commits to the table whose log is `log`, after the version of `files`. `commit_step`: the name of that step."""

    log: DeltaLog
    files: LakeFiles
    clock: Clock
    on_step: OnStep
    commit_step: str = "lake_table.merge"

    def make(
        self,
        operation: str,
        fence_number: int,
        user_metadata: str,
        counts: Counts,
        deleted: Mapping[str, BitMap64],
        written: Sequence[DataFile],
        may_commit: Callable[[], None],
    ) -> None:
        """Makes the commit; it is durable and visible on return. `deleted`: path -> indexes of the replaced rows.

        Raises VersionTaken if another writer committed after the version of `files`.
        """
        files, state, now = self.files, self.files.state, self.clock()
        milliseconds = int(now.timestamp() * 1000)
        info = commit_info(operation=operation, user_metadata=user_metadata, read_version=state.version, now=now)
        info["commitInfo"]["operationMetrics"] = {
            "numTargetRowsInserted": str(counts.inserted),
            "numTargetRowsUpdated": str(counts.updated),
            "numTargetRowsDeleted": str(counts.deleted),
        }
        vectors = {path: files.vector(path) | rows for path, rows in deleted.items()}
        old = {path: files.file(path) for path in vectors}
        rows_of = {path: _records(files, old[path]) for path in vectors}
        marked = {path: rows for path, rows in vectors.items() if len(rows) < rows_of[path]}
        actions = [info, fence_action(files.table.app_id, fence_number, now)]
        actions += [remove(file, milliseconds) for file in old.values()]
        if marked:
            vector_path, content, descriptors = vector_file(marked)
            actions += [_marked(old[path], rows_of[path], descriptors[path]) for path in marked]
            with step(self.on_step, "lake_vectors.put"):
                files.store.put_if_absent(f"{files.folder}/{vector_path}", content)
        actions += [add(files.table, file, milliseconds) for file in written]
        may_commit()
        with step(self.on_step, self.commit_step):
            self.log.append(state.version + 1, actions)
        state.follow(actions, state.version + 1)


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
