"""Reads and appends the log of a Delta table as objects, without a JVM.

Except where a docstring says otherwise, the cost does not grow with the table's files or history.
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from cdc_pipeline.errors import LakeError, ObjectExists, ObjectMissing
from cdc_pipeline.lake.arrow_actions import plain_actions
from cdc_pipeline.lake.checkpoint_files import checkpoint_batches, checkpoint_keys, named_checkpoint, read_object
from cdc_pipeline.object_store import ObjectStore

Action = dict[str, Any]
FileIdentity = tuple[str, str]
"""A data file's path, and the identity of its deletion vector."""

_CHECKPOINT = re.compile(r"(?P<version>\d{20})\.checkpoint(\.\d{10}\.(?P<parts>\d{10}))?\.parquet")


class VersionTaken(LakeError):
    """Another writer committed first. Nothing of this commit is in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One version of a table, with the actions that its log records."""

    version: int
    actions: tuple[Action, ...]

    def of_kind(self, kind: str) -> list[Action]:
        return [action[kind] for action in self.actions if kind in action]

    @property
    def info(self) -> Action:
        found = self.of_kind("commitInfo")
        return found[0] if found else {}

    @property
    def time(self) -> datetime:
        """The time of the commit, by the clock of the process that wrote it."""
        return datetime.fromtimestamp(int(self.info.get("timestamp", 0)) / 1000, UTC)

    def transaction_version(self, app_id: str) -> int | None:
        return next((int(txn["version"]) for txn in self.of_kind("txn") if txn["appId"] == app_id), None)

    @property
    def user_metadata(self) -> Action:
        """The JSON object that the writer put into userMetadata; empty if there is none."""
        try:
            document = json.loads(self.info.get("userMetadata") or "{}")
        except json.JSONDecodeError:
            return {}
        return document if isinstance(document, dict) else {}


class DeltaLog:
    """The log under `<table_key>/_delta_log/`."""

    def __init__(self, store: ObjectStore, table_key: str) -> None:
        self._store = store
        self.folder = f"{table_key}/_delta_log"
        self.table_key = table_key

    def latest_version(self, known: int | None = None) -> int | None:
        """Returns the latest version, or None if there is no table. `known` is an existing version to start from.

        Versions have no gaps above the last checkpoint, so the end is found by doubling steps, then by halves.
        """
        low = self._start(known)
        if low is None:
            return None
        stride = 1
        while self.exists(low + stride):
            low += stride
            stride *= 2
        while stride > 1:
            stride //= 2
            if self.exists(low + stride):
                low += stride
        return low

    def read(self, version: int) -> Commit | None:
        """Returns the commit, or None if that version does not exist yet or was cleaned.

        Raises LakeError if it is damaged.
        """
        try:
            content = self._store.get(self._key(version))
        except ObjectMissing:
            return None
        try:
            # `splitlines` would cut at line separators of Unicode, too, which Spark writes into texts as they are.
            lines = [line for line in content.decode().split("\n") if line]
            actions = tuple(json.loads(line) for line in lines or [""])  # an empty file is no commit
        except ValueError as error:
            raise damaged_log(
                f"{self._key(version)} is no commit of a Delta log: {error}",
                expected="one JSON object in each line, as it was written",
            ) from error
        return Commit(version=version, actions=actions)

    def checkpoint_key(self, version: int) -> str:
        return f"{self.folder}/{version:020d}.checkpoint.parquet"

    @property
    def last_checkpoint_key(self) -> str:
        """The key of the object that names the last checkpoint."""
        return f"{self.folder}/_last_checkpoint"

    def backwards(self, latest: int) -> Iterator[Commit]:
        """Yields the commits from `latest` down to the oldest that the log still has."""
        for version in range(latest, -1, -1):
            commit = self.read(version)
            if commit is None:
                return
            yield commit

    def append(self, version: int, actions: list[Action]) -> None:
        """Writes the commit; it is durable on return. Raises VersionTaken if that version already exists.

        Raises LakeError if it does not, but the next one does: nothing is written where a commit is missing.
        """
        # Of two versions the higher one is looked at first, since another writer may be writing both now.
        if self.exists(version + 1) and not self.exists(version):
            raise damaged_log(
                f"version {version} of {self.folder} is missing, and {version + 1} is there",
                expected="all versions from a checkpoint, or from version 0, up to the latest",
            )
        content = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
        try:
            self._store.put_if_absent(self._key(version), content.encode())
        except ObjectExists as error:
            raise VersionTaken(
                f"somebody else wrote version {version} of {self.folder}", remedy="read the fence again and retry"
            ) from error

    def checkpointed(self, kind: str) -> list[Action]:
        """Returns the actions of one kind in the last checkpoint. Reads only that kind's column."""
        return self.in_checkpoint(self.checkpoint_before(sys.maxsize)[1], kind)

    def in_checkpoint(self, keys: list[str], kind: str) -> list[Action]:
        """Returns the actions of one kind in these checkpoint files."""
        batches = self.checkpoint_batches(keys, frozenset({kind}))
        return [action for batch in batches for action in plain_actions(batch.column(kind).drop_null())]

    def checkpoint_batches(self, keys: list[str], kinds: frozenset[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of checkpoint files, one column per kind of action, without fields that repeat others.

        `kinds`: reads nothing but the columns of these kinds, as far as the files have them.
        """
        for key in keys:
            yield from checkpoint_batches(self._store, key, kinds)

    def beside(self, table_key: str) -> "DeltaLog":
        """Returns the log of another table in the same store."""
        return DeltaLog(self._store, table_key)

    def metadata(self, latest: int) -> Action:
        """Returns the table's metaData action as of `latest`. Costs one read if Spark wrote that version."""
        return self.newest("metaData", latest, summed="metadata")

    def newest(self, kind: str, latest: int, *, summed: str = "") -> Action:
        """Returns the last action of a kind as of `latest`, for kinds whose actions each replace the one before.

        `summed`: the action's name in the checksum file that Spark writes beside a commit. That file has the action as
        of its version.
        """
        checkpoint, keys = -1, list[str]()
        for version in range(latest, -1, -1):
            if summed and (sums := self._checksum(version)) and isinstance(sums.get(summed), dict):
                return dict(sums[summed])
            commit = self.read(version)
            found = [] if commit is None else commit.of_kind(kind)
            if found:
                return dict(found[0])
            if version == latest:
                checkpoint, keys = self.checkpoint_before(latest)
            if commit is None or version <= checkpoint:
                break
        for action in self.in_checkpoint(keys, kind):
            return action
        raise damaged_log(
            f"the log in {self.folder} does not say the {kind} of version {latest}",
            expected="the log from a checkpoint, or from version 0, up to that version",
        )

    def _checksum(self, version: int) -> Action:
        """Returns the content of the checksum file; empty if there is none that can be read."""
        return read_object(self._store, f"{self.folder}/{version:020d}.crc")

    def active_files(self, version: int) -> dict[FileIdentity, Action]:
        """Returns the `add` actions of all files of `version`.

        The cost grows with the table, so do not call it for every claim. Raises LakeError for a version that the log
        can no longer show.
        """
        checkpoint, keys = self.checkpoint_before(version)
        active = {file_identity(add): add for add in self.in_checkpoint(keys, "add")}
        for number in range(checkpoint + 1, version + 1):
            commit = self.read(number)
            if commit is None:
                raise self.missing(number, version)
            for action in commit.actions:
                if "remove" in action:
                    active.pop(file_identity(action["remove"]), None)
                if "add" in action:
                    active[file_identity(action["add"])] = action["add"]
        return active

    def missing(self, version: int, latest: int) -> LakeError:
        """Returns the error of a reader of `latest` for a version that the log lacks."""
        return damaged_log(
            f"version {version} of {self.folder} is missing",
            expected=f"the log from a checkpoint, or from version 0, up to version {latest}",
        )

    def checkpoint_before(self, version: int) -> tuple[int, list[str]]:
        """Returns the version of the last checkpoint at or before `version`, and its files; -1 if there is none.

        A log that names a checkpoint whose commit is gone may have been cleaned up to a newer one, whose writer was
        killed before it named it.
        """
        last = named_checkpoint(self._store, self.last_checkpoint_key)
        is_before = last is not None and last["version"] <= version
        if last is not None and is_before and self.exists(last["version"]):
            return last["version"], checkpoint_keys(self.folder, last)
        if last is None and self.exists(0):
            return -1, []
        found = dict[tuple[int, str | None], list[str]]()
        for entry in self._store.list_prefix(self.folder):
            name = _CHECKPOINT.fullmatch(entry.key.rpartition("/")[2])
            if name and int(name["version"]) <= version:
                found.setdefault((int(name["version"]), name["parts"]), []).append(entry.key)
        complete = ((number, keys) for (number, parts), keys in found.items() if len(keys) == int(parts or 1))
        newest = max(complete, default=None)
        if newest is None and last is not None and is_before:
            return last["version"], checkpoint_keys(self.folder, last)
        return newest or (-1, [])

    def checkpoint_rows(self) -> int:
        """Returns the number of rows that the log names for its last checkpoint; 0 if it names none."""
        last = named_checkpoint(self._store, self.last_checkpoint_key)
        return 0 if last is None else int(last.get("size") or 0)

    def _start(self, known: int | None) -> int | None:
        """Returns a version that exists; None if there is no table."""
        if known is not None and self.exists(known):
            return known
        last = named_checkpoint(self._store, self.last_checkpoint_key)
        if last is not None and self.exists(last["version"]):
            return int(last["version"])
        version = self.checkpoint_before(sys.maxsize)[0]
        return version if self.exists(version) else 0 if self.exists(0) else None

    def _key(self, version: int) -> str:
        return f"{self.folder}/{version:020d}.json"

    def exists(self, version: int) -> bool:
        """Whether the log still has, or already has, the commit of this version."""
        try:
            self._store.head(self._key(version))
        except ObjectMissing:
            return False
        return True


def damaged_log(found: str, *, expected: str) -> LakeError:
    return LakeError(
        found,
        expected=expected,
        remedy="bring the log's files back from a copy of the lake; without one, move the table's folder away and run"
        " cdc snapshot on the table",
    )


def file_identity(file: Action) -> FileIdentity:
    """Returns the identity of the file in an `add` or `remove` action."""
    vector = file.get("deletionVector") or {}
    return (file["path"], f"{vector.get('storageType')}{vector.get('pathOrInlineDv')}@{vector.get('offset')}")
