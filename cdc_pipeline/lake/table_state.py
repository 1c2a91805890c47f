"""The files and metadata of a lake table at one version, cached in the process and updated from newer commits."""

import json
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from cdc_pipeline.lake.delta_log import Action, DeltaLog, file_identity
from cdc_pipeline.lake.protocol import KeyRange, joined

_MOST_COMMITS = 200
"""If more commits than this are newer, the checkpoint is read again instead."""
_MOST_FILES = 200_000
"""Most files that one process caches, over all tables; about 1 kB each.

The least recently used tables are dropped first.
"""
Bounds = tuple[Any, Any]


@dataclass(slots=True, kw_only=True)
class LakeTableState:
    """What a lake table consists of at one version.

    `files`: path -> `add` action. `info`: the commitInfo of `version`, which shows whether the table was replaced.
    """

    version: int
    info: Action
    metadata: Action
    protocol: Action
    files: dict[str, Action]
    _bounds: dict[str, dict[str, Bounds | None]] = field(default_factory=dict)

    def follow(self, actions: Iterable[Action], version: int) -> None:
        """Updates the state with the actions of the next commit."""
        for action in actions:
            if "remove" in action:
                self._remove(action["remove"])
            elif "add" in action:
                self.files[action["add"]["path"]] = action["add"]
            elif "metaData" in action:
                self.metadata = action["metaData"]
                self._bounds = {}
            elif "protocol" in action:
                self.protocol = action["protocol"]
            elif "commitInfo" in action:
                self.info = action["commitInfo"]
        self.version = version

    def candidates(self, column: str, ranges: Sequence[KeyRange]) -> list[str]:
        """Returns the paths of the files that may have values of `column` within `ranges`, by their statistics.

        `column` is the name inside files. Files without minimum and maximum are always included.
        """
        known = self._bounds.setdefault(column, {})
        spans = joined(ranges)
        lows, highs = [low for low, _ in spans], [high for _, high in spans]
        found = []
        for path, file in self.files.items():
            if path not in known:
                known[path] = _bounds_of(file, column, type(lows[0]))
            bounds = known[path]
            place = 0 if bounds is None else bisect_left(highs, bounds[0])
            if bounds is None or (place < len(lows) and lows[place] <= bounds[1]):
                found.append(path)
        return found

    def _remove(self, file: Action) -> None:
        """Removes the file, if its deletion vector is the one that is held.

        A commit may list a file with its new vector before it removes the file with the old one.
        """
        held = self.files.get(file["path"])
        if held is not None and file_identity(held) == file_identity(file):
            del self.files[file["path"]]
            for known in self._bounds.values():
                known.pop(file["path"], None)


class LakeTableStates:
    """Caches table states; one instance per process.

    Calls for one table must not overlap, those for several tables may.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, LakeTableState] = OrderedDict()
        self._lock = Lock()

    def at(self, log: DeltaLog, version: int) -> LakeTableState:
        """Returns the state as of `version`.

        Costs one read, and one per newer commit. Without a cached state it reads the checkpoint. Raises LakeError for a
        version that the log can no longer show.
        """
        with self._lock:
            state = self._kept.pop(log.folder, None)
        if state is None or not _brought_to(log, state, version):
            state = _read(log, version)
        self.keep(log, state)
        return state

    def keep(self, log: DeltaLog, state: LakeTableState) -> None:
        with self._lock:
            self._kept[log.folder] = state
            while len(self._kept) > 1 and sum(len(each.files) for each in self._kept.values()) > _MOST_FILES:
                self._kept.popitem(last=False)


def _brought_to(log: DeltaLog, state: LakeTableState, version: int) -> bool:
    """Updates `state` to `version`. Returns False if the log does not allow it: then `state` must not be used."""
    if not 0 <= version - state.version <= _MOST_COMMITS or not state.info:
        return False
    same = log.read(state.version)
    if same is None or same.info != state.info:
        return False
    for number in range(state.version + 1, version + 1):
        commit = log.read(number)
        if commit is None:
            return False
        state.follow(commit.actions, number)
    return True


def _read(log: DeltaLog, version: int) -> LakeTableState:
    commit = log.read(version)
    return LakeTableState(
        version=version,
        info={} if commit is None else commit.info,
        metadata=log.metadata(version),
        protocol=log.newest("protocol", version),
        files={file["path"]: file for file in log.active_files(version).values()},
    )


def _bounds_of(file: Action, column: str, type_: type) -> Bounds | None:
    stats = json.loads(file.get("stats") or "{}")
    low, high = ((stats.get(name) or {}).get(column) for name in ("minValues", "maxValues"))
    return (low, high) if type(low) is type(high) is type_ else None
