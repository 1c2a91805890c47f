"""Reads and appends the log of a Delta table as objects, without a JVM.

Except where a docstring says otherwise, the cost does not grow with the table's files or history.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from cdc_pipeline.errors import LakeError, ObjectExists, ObjectMissing
from cdc_pipeline.object_store import ObjectStore

Action = dict[str, Any]
FileIdentity = tuple[str, str]
"""A data file's path, and the identity of its deletion vector."""

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(\.\d{10}\.\d{10})?\.parquet")


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
        self._folder = f"{table_key}/_delta_log"

    @property
    def folder(self) -> str:
        """The key of the folder of the log's objects."""
        return self._folder

    def latest_version(self, known: int | None = None) -> int | None:
        """Returns the latest version, or None if there is no table. `known` is an existing version to start from.

        Versions have no gaps above the last checkpoint, so a galloping search finds the end.
        """
        low = self._start(known)
        if low is None:
            return None
        stride = 1
        while self._exists(low + stride):
            low += stride
            stride *= 2
        while stride > 1:
            stride //= 2
            if self._exists(low + stride):
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
            actions = tuple(json.loads(line) for line in content.decode().splitlines() if line)
        except ValueError as error:
            raise LakeError(
                f"{self._key(version)} is no commit of a Delta log: {error}",
                expected="one JSON object in each line, as it was written",
                remedy="bring the file back from a copy of the lake; without one, move the table's folder away and run"
                " cdc snapshot on the table",
            ) from error
        return Commit(version=version, actions=actions)

    def backwards(self, latest: int) -> Iterator[Commit]:
        """Yields the commits from `latest` down to the oldest that the log still has."""
        for version in range(latest, -1, -1):
            commit = self.read(version)
            if commit is None:
                return
            yield commit

    def append(self, version: int, actions: list[Action]) -> None:
        """Writes the commit; it is durable on return. Raises VersionTaken if that version already exists."""
        content = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
        try:
            self._store.put_if_absent(self._key(version), content.encode())
        except ObjectExists as error:
            raise VersionTaken(
                f"somebody else wrote version {version} of {self._folder}", remedy="read the fence again and retry"
            ) from error

    def checkpointed(self, kind: str) -> list[Action]:
        """Returns the actions of one kind in the last checkpoint. Reads only that kind's column."""
        return self._in_checkpoint(self._checkpoint_keys(), kind)

    def _in_checkpoint(self, keys: list[str], kind: str) -> list[Action]:
        found: list[Action] = []
        filesystem, root = self._store.filesystem()
        for key in keys:
            with pyarrow.parquet.ParquetFile(f"{root}/{key}", filesystem=filesystem) as file:
                if kind in file.schema_arrow.names:
                    for rows in file.read(columns=[kind]).column(kind).drop_null().chunks:
                        found += map(_plain, _values(rows))
        return found

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
            if summed and (sums := self._checksum(version)):
                return dict(sums[summed])
            commit = self.read(version)
            found = [] if commit is None else commit.of_kind(kind)
            if found:
                return dict(found[0])
            if version == latest:
                checkpoint, keys = self._checkpoint_before(latest)
            if commit is None or version <= checkpoint:
                break
        return self._in_checkpoint(keys, kind)[0]

    def _checksum(self, version: int) -> Action:
        """Returns the content of the checksum file; empty if there is none."""
        try:
            return dict(json.loads(self._store.get(f"{self._folder}/{version:020d}.crc")))
        except ObjectMissing:
            return {}

    def active_files(self, version: int) -> dict[FileIdentity, Action]:
        """Returns the `add` actions of all files of `version`.

        The cost grows with the table, so do not call it for every claim. Raises LakeError for a version that the log
        can no longer show.
        """
        checkpoint, keys = self._checkpoint_before(version)
        active = {file_identity(add): add for add in self._in_checkpoint(keys, "add")}
        for number in range(checkpoint + 1, version + 1):
            commit = self.read(number)
            if commit is None:
                raise LakeError(
                    f"version {number} of {self._folder} is not there any more",
                    expected=f"the log from a checkpoint up to version {version}",
                )
            for action in commit.actions:
                if "remove" in action:
                    active.pop(file_identity(action["remove"]), None)
                if "add" in action:
                    active[file_identity(action["add"])] = action["add"]
        return active

    def _checkpoint_before(self, version: int) -> tuple[int, list[str]]:
        """Returns the version of the last checkpoint at or before `version`, and its files; -1 if there is none."""
        last = self._checkpoint_version()
        if last is not None and last <= version:
            return last, self._checkpoint_keys()
        found: dict[int, list[str]] = {}
        for entry in self._store.list_prefix(self._folder) if last is not None else ():
            name = _CHECKPOINT.fullmatch(entry.key.rpartition("/")[2])
            if name and int(name[1]) <= version:
                found.setdefault(int(name[1]), []).append(entry.key)
        newest = max(found, default=-1)
        return newest, found.get(newest, [])

    def _start(self, known: int | None) -> int | None:
        for version in (known, self._checkpoint_version(), 0):
            if version is not None and self._exists(version):
                return version
        return None

    def _key(self, version: int) -> str:
        return f"{self._folder}/{version:020d}.json"

    def _exists(self, version: int) -> bool:
        try:
            self._store.head(self._key(version))
        except ObjectMissing:
            return False
        return True

    def _last_checkpoint(self) -> Action | None:
        try:
            return dict(json.loads(self._store.get(f"{self._folder}/_last_checkpoint")))
        except ObjectMissing:
            return None

    def _checkpoint_version(self) -> int | None:
        last = self._last_checkpoint()
        return None if last is None else int(last["version"])

    def _checkpoint_keys(self) -> list[str]:
        last = self._last_checkpoint()
        if last is None:
            return []
        stem = f"{self._folder}/{int(last['version']):020d}.checkpoint"
        parts = last.get("parts")
        if parts is None:
            return [f"{stem}.parquet"]
        return [f"{stem}.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)]


def file_identity(file: Action) -> FileIdentity:
    """Returns the identity of the file in an `add` or `remove` action."""
    vector = file.get("deletionVector") or {}
    return (file["path"], f"{vector.get('storageType')}{vector.get('pathOrInlineDv')}@{vector.get('offset')}")


def _values(rows: pa.Array) -> list[Any]:
    """Returns the same as `to_pylist` in a fifth of the time, because it works by column, not by row."""
    if not pa.types.is_struct(rows.type):
        return list(rows.to_pylist(maps_as_pydicts="strict"))
    names = [field.name for field in rows.type]
    columns = [_values(rows.field(number)) for number in range(len(names))]
    structs = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    if not rows.null_count:
        return structs
    return [struct if valid else None for struct, valid in zip(structs, rows.is_valid().to_pylist(), strict=True)]


def _plain(row: Action) -> Action:
    """Removes the NULLs that a checkpoint's columns have for fields that the JSON leaves out."""
    return {name: value for name, value in row.items() if value is not None}
