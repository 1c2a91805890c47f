"""The data files of a lake table at one version: Arrow columns as of a checkpoint, and what changed since.

No call looks at every file of the table. The cost of a search grows with the files that it finds, the cost of a change
with the files that it changes. The columns are built again after many changes, which costs little for each change.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.lake.arrow_actions import plain_actions
from cdc_pipeline.lake.checkpoint_rows import ROWS, encoded
from cdc_pipeline.lake.delta_log import Action, file_identity
from cdc_pipeline.lake.file_bounds import Bounds, BoundsIndex, Rows, bounds_reader
from cdc_pipeline.lake.protocol import KeyRange, joined

FILE_TYPE = ROWS.field("add").type
_BoundsOf = Callable[[str | None], Bounds | None]
_MOST_CHANGES = 4_096
"""After this many changes the columns are built again."""
_ELSEWHERE = "^/|:/"
"""Matches the paths of files outside the table's folder."""


class TableFiles:
    """`add` actions by path. `checkpointed`: those of a checkpoint, in arrays of FILE_TYPE."""

    def __init__(self, checkpointed: Iterable[pa.Array] = ()) -> None:
        self._load(checkpointed)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._is_live)) + len(self._newer)

    @property
    def size_bytes(self) -> int:
        """The memory of the columns."""
        return int(self._columns.nbytes)

    @property
    def has_files_elsewhere(self) -> bool:
        """Whether a file may lie outside the table's folder."""
        return self._has_elsewhere

    def paths(self) -> list[str]:
        """Returns the paths of all files."""
        return [*self._paths_of(np.flatnonzero(self._is_live)), *self._newer]

    def get(self, path: str) -> Action | None:
        """Returns the `add` action of a file. None if there is no such file."""
        newer = self._newer.get(path)
        row = self._row_of(path) if newer is None else None
        if row is None:
            return newer
        (found,) = plain_actions(self._columns.slice(row, 1))
        return found

    def within(self, column: str, ranges: Sequence[KeyRange]) -> list[str]:
        """Returns the paths of the files that may have values of `column` within `ranges`, by their statistics.

        `column` is the name inside files. Files without minimum and maximum are always included.
        """
        spans = joined(ranges)
        bounds_of, index = self._index(column, type(spans[0][0]))
        rows = index.within(spans)
        lows, highs = [low for low, _ in spans], [high for _, high in spans]

        def may_match(file: Action) -> bool:
            bounds = bounds_of(file.get("stats"))
            span = 0 if bounds is None else bisect_left(highs, bounds[0])
            return bounds is None or (span < len(spans) and lows[span] <= bounds[1])

        newer = [path for path, file in self._newer.items() if may_match(file)]
        return [*self._paths_of(rows[self._is_live[rows]]), *newer]

    def follow(self, actions: Iterable[Action]) -> None:
        """Applies the `add` and `remove` actions of one commit.

        A file is removed only if its deletion vector is the one that is held, because a commit may list a file with
        its new vector before it removes the file with the old one.
        """
        changes = [action for action in actions if "add" in action or "remove" in action]
        for action in changes:
            if "add" in action:
                path = action["add"]["path"]
                self._drop(path)
                self._newer[path] = action["add"]
                self._has_elsewhere |= path.startswith("/") or ":/" in path
            else:
                held = self.get(action["remove"]["path"])
                if held is not None and file_identity(held) == file_identity(action["remove"]):
                    self._drop(held["path"])
        self._changes += len(changes)
        if self._changes > _MOST_CHANGES:
            newer = pa.array([encoded(FILE_TYPE, file) for file in self._newer.values()], FILE_TYPE)
            self._load([self._columns.filter(pa.array(self._is_live)), newer])

    def _load(self, parts: Iterable[pa.Array]) -> None:
        self._columns = pa.concat_arrays([pa.array([], FILE_TYPE), *parts])
        self._is_live = np.ones(len(self._columns), dtype=np.bool_)
        self._paths: tuple[Rows, Rows] | None = None
        self._indexes: dict[str, tuple[_BoundsOf, BoundsIndex]] = {}
        self._newer: dict[str, Action] = {}
        self._changes = 0
        elsewhere = pc.match_substring_regex(self._columns.field("path"), _ELSEWHERE)
        self._has_elsewhere = bool(pc.any(elsewhere, min_count=0).as_py())

    def _index(self, column: str, type_: type) -> tuple[_BoundsOf, BoundsIndex]:
        if column not in self._indexes:
            bounds_of = bounds_reader(column, type_)
            stats = self._columns.field("stats").to_pylist()
            self._indexes[column] = bounds_of, BoundsIndex(map(bounds_of, stats), type_)
        return self._indexes[column]

    def _row_of(self, path: str) -> int | None:
        """Returns the row of a file that is still in the columns."""
        hashes, rows = self._path_index()
        wanted = hash(path)
        for number in range(int(np.searchsorted(hashes, wanted)), len(hashes)):
            if hashes[number] != wanted:
                break
            row = int(rows[number])
            if self._is_live[row] and self._columns.field("path")[row].as_py() == path:
                return row
        return None

    def _path_index(self) -> tuple[Rows, Rows]:
        """Returns the sorted hashes of all paths, and the row of each. A dictionary would take ten times the memory."""
        if self._paths is None:
            hashes = np.fromiter(map(hash, self._columns.field("path").to_pylist()), np.int64, len(self._columns))
            order = np.argsort(hashes)
            self._paths = hashes[order], order
        return self._paths

    def _drop(self, path: str) -> None:
        row = self._row_of(path)
        if row is not None:
            self._is_live[row] = False
        self._newer.pop(path, None)

    def _paths_of(self, rows: Rows) -> list[str]:
        paths: list[str] = self._columns.field("path").take(pa.array(rows)).to_pylist()
        return paths
