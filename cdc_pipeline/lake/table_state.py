"""The files and metadata of a lake table at one version, cached and updated from newer commits."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock

from cdc_pipeline.lake.checkpoint_rows import conformed
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.table_files import FILE_TYPE, TableFiles

_MOST_COMMITS = 200
"""If more commits than this are newer, the checkpoint is read again instead."""
_MOST_BYTES = 256 << 20
"""Memory that one slot of a worker uses for the files of all tables: about half a million files.

The least recently used tables are dropped first.
"""


@dataclass(slots=True, kw_only=True)
class LakeTableState:
    """What a lake table consists of at one version.

    `info`: the commitInfo of `version`, which shows whether the table was replaced. `checkpoint`: the version of the
    last checkpoint that is known; -1 if there is none. `looked_at`: the version at which this process last looked for
    files that have decayed; -1 if it did not. `checkpoints_by_delta`: only Delta can write checkpoints of this log.
    `checkpoint_rows`: of that checkpoint, as far as this process has looked.
    `cleaned_before`: this process deleted what had expired by then from the log.
    """

    version: int
    checkpoint: int = -1
    checkpoint_rows: int = 0
    looked_at: int = -1
    info: Action = field(default_factory=dict)
    metadata: Action = field(default_factory=dict)
    protocol: Action = field(default_factory=dict)
    files: TableFiles = field(default_factory=TableFiles)
    checkpoints_by_delta: bool = False
    cleaned_before: datetime | None = None

    def follow(self, actions: Iterable[Action], version: int) -> None:
        """Updates the state with the actions of the next commit."""
        actions = tuple(actions)
        self.files.follow(actions)
        for action in actions:
            if "metaData" in action:
                self.metadata = action["metaData"]
            elif "protocol" in action:
                self.protocol = action["protocol"]
            elif "commitInfo" in action:
                self.info = action["commitInfo"]
        self.version = version


class LakeTableStates:
    """Caches table states; one instance per slot of a worker.

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
            while len(self._kept) > 1 and sum(each.files.size_bytes for each in self._kept.values()) > _MOST_BYTES:
                self._kept.popitem(last=False)


def _brought_to(log: DeltaLog, state: LakeTableState, version: int) -> bool:
    """Updates `state` to `version`. Returns False if the log does not allow it: then `state` must not be used."""
    if not 0 <= version - state.version <= _MOST_COMMITS or not state.info:
        return False
    same = log.read(state.version)
    return same is not None and same.info == state.info and _followed(log, state, version)


def _followed(log: DeltaLog, state: LakeTableState, version: int) -> bool:
    """Updates `state` by the commits up to `version`. Returns False if one of them is missing."""
    for number in range(state.version + 1, version + 1):
        commit = log.read(number)
        if commit is None:
            return False
        state.follow(commit.actions, number)
    return True


def _read(log: DeltaLog, version: int) -> LakeTableState:
    checkpoint, keys = log.checkpoint_before(version)
    batches = log.checkpoint_batches(keys, frozenset({"add"}))
    files = (batch.column("add").drop_null() for batch in batches)
    state = LakeTableState(
        version=checkpoint,
        checkpoint=checkpoint,
        files=TableFiles(conformed(part, FILE_TYPE, is_strict=False) for part in files),
    )
    for kind in ("metaData", "protocol") if keys else ():
        state.follow(({kind: action} for action in log.in_checkpoint(keys, kind)), checkpoint)
    if not _followed(log, state, version):
        raise log.missing(state.version + 1, version)
    if version == checkpoint:
        commit = log.read(version)
        state.info = {} if commit is None else commit.info
    return state
