"""The data files of a lake table at one version: Arrow columns as of a checkpoint, and what changed since.

No call looks at every file of the table. The cost of a search grows with the files that it finds, the cost of a change
with the files that it changes. The columns are built again after many changes, which costs little for each change.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.lake.arrow_actions import plain_actions
from cdc_pipeline.lake.checkpoint_rows import ROWS, encoded
from cdc_pipeline.lake.decay import WornFile
from cdc_pipeline.lake.delta_log import Action, file_identity
from cdc_pipeline.lake.file_bounds import Bounds, BoundsIndex, Rows, bounds_reader
from cdc_pipeline.lake.key_ranges import joined
from cdc_pipeline.lake.protocol import KeyRange

FILE_TYPE = ROWS.field("add").type
_BoundsOf = Callable[[str | None], Bounds | None]
_MOST_CHANGES = 4_096
"""After this many changes the columns are built again."""
_NEWER_BYTES = 2_048
"""Memory of the `add` action of a newer commit."""
ELSEWHERE = "^/|:/"
"""Matches the paths of files outside the table's folder."""
_RECORDS = r'"numRecords"\s*:\s*(?P<rows>[0-9]+)'


class TableFiles:
    """`add` actions by path. `checkpointed`: those of a checkpoint, in arrays of FILE_TYPE."""

    def __init__(self, checkpointed: Iterable[pa.Array] = ()) -> None:
        self._load(checkpointed)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._is_live)) + len(self._newer)

    @property
    def size_bytes(self) -> int:
        """The memory of the columns, and about that of the files of newer commits."""
        return int(self._columns.nbytes) + len(self._newer) * _NEWER_BYTES

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

    def within(self, column: str, ranges: Sequence[KeyRange], reaching: tuple[str, str] | None = None) -> list[str]:
        """Returns the paths of the files that may have values of `column` within `ranges`, by their statistics.

        `reaching`: another column and a text; files whose texts are all less are left out. Columns have their names
        inside files. Files without minimum and maximum are always included.
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
        if reaching is not None:
            (texts_of, texts), least = self._index(reaching[0], str), reaching[1]
            rows = texts.reaching(rows, least)
            ends = ((path, texts_of(self._newer[path].get("stats"))) for path in newer)
            newer = [path for path, bounds in ends if bounds is None or bounds[1] >= least]
        return [*self._paths_of(rows[self._is_live[rows]]), *newer]

    def worn(self, small_bytes: int, deleted_share: float) -> list[WornFile]:
        """Returns the files that are smaller than `small_bytes`, or have at least this share of deleted rows.

        Costs some milliseconds for 100,000 files, and more for each file that it finds.
        """
        deleted = pc.struct_field(self._columns, ["deletionVector", "cardinality"])
        counted = pc.extract_regex(self._columns.field("stats"), _RECORDS)
        rows = pc.cast(pc.struct_field(counted, "rows"), pa.int64())
        mostly = pc.greater_equal(deleted, pc.multiply(pc.cast(rows, pa.float64()), deleted_share))
        is_small = pc.less(self._columns.field("size"), small_bytes)
        is_worn = pc.fill_null(pc.or_kleene(is_small, mostly), fill_value=False)
        found = np.flatnonzero(self._is_live & is_worn.to_numpy(zero_copy_only=False))
        files = map(_worn, [*plain_actions(self._columns.take(pa.array(found))), *self._newer.values()])
        return [file for file in files if file.size_bytes < small_bytes or file.deleted_share >= deleted_share]

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
        self._indexes: dict[tuple[str, type], tuple[_BoundsOf, BoundsIndex]] = {}
        self._newer: dict[str, Action] = {}
        self._changes = 0
        elsewhere = pc.match_substring_regex(self._columns.field("path"), ELSEWHERE)
        self._has_elsewhere = bool(pc.any(elsewhere, min_count=0).as_py())

    def _index(self, column: str, type_: type) -> tuple[_BoundsOf, BoundsIndex]:
        # The column has another type after a snapshot with another id; the statistics of older files do not fit then.
        known = self._indexes.get((column, type_))
        if known is None:
            bounds_of = bounds_reader(column, type_)
            stats = self._columns.field("stats").to_pylist()
            known = bounds_of, BoundsIndex(map(bounds_of, stats), type_)
            self._indexes[column, type_] = known
        return known

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


def _worn(file: Action) -> WornFile:
    rows = re.search(_RECORDS, file.get("stats") or "")
    return WornFile(
        path=file["path"],
        size_bytes=int(file["size"]),
        partition=tuple(sorted((file.get("partitionValues") or {}).items())),
        rows=int(rows["rows"]) if rows else 0,
        deleted_rows=int((file.get("deletionVector") or {}).get("cardinality", 0)),
    )
