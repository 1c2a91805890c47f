"""An object store that is written to only after a race has shown that one of several writers wins."""

import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from threading import Barrier, Lock
from typing import BinaryIO

import pyarrow.fs

from cdc_pipeline.errors import ObjectExists, SettingsError
from cdc_pipeline.object_store.protocol import ObjectInfo, ObjectStore

_SCRATCH = "staging-area/.check"
_CONTENTS = (b"one", b"other")


class ProvenObjectStore:
    """Runs the race before the first put of this process. Reading needs none. A refused store raises SettingsError."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._lock = Lock()
        self._proven = False

    def prove(self) -> None:
        """Runs the race unless this process has run it. Call it before writing to the store by other means."""
        with self._lock:
            if not self._proven:
                _refuse_unless_one_wins(self._objects)
                self._proven = True

    @property
    def url(self) -> str:
        return self._objects.url

    def put_if_absent(self, key: str, content: bytes) -> None:
        self.prove()
        self._objects.put_if_absent(key, content)

    def put_file_if_absent(self, key: str, source: Path) -> None:
        self.prove()
        self._objects.put_file_if_absent(key, source)

    def overwrite(self, key: str, content: bytes) -> None:
        self.prove()
        self._objects.overwrite(key, content)

    def get(self, key: str) -> bytes:
        return self._objects.get(key)

    def copy_to(self, key: str, sink: BinaryIO) -> int:
        return self._objects.copy_to(key, sink)

    def head(self, key: str) -> ObjectInfo:
        return self._objects.head(key)

    def list_prefix(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return self._objects.list_prefix(prefix, after)

    def unfinished(self, prefix: str, before: datetime | None = None) -> Iterator[ObjectInfo]:
        return self._objects.unfinished(prefix, before)

    def delete(self, key: str) -> None:
        self._objects.delete(key)

    def delete_all(self, keys: Sequence[str]) -> None:
        self._objects.delete_all(keys)

    def spark_url(self, key: str) -> str:
        return self._objects.spark_url(key)

    def delta_url(self, key: str) -> str:
        return self._objects.delta_url(key)

    def filesystem(self) -> tuple[pyarrow.fs.FileSystem, str]:
        return self._objects.filesystem()


def _refuse_unless_one_wins(objects: ObjectStore) -> None:
    """Two threads put one key at the same time. Raises SettingsError when the store ignores the condition."""
    folder = f"{_SCRATCH}-{uuid.uuid4().hex}"
    try:
        winners = _race(objects, f"{folder}/race")
    finally:
        for found in list(objects.list_prefix(folder)):
            objects.delete(found.key)
    if winners != 1:
        raise SettingsError(
            f"{objects.url} let {winners} of {len(_CONTENTS)} writers of one object win",
            expected="a store in which exactly one of several puts with If-None-Match succeeds",
            remedy="move the lake to such a store (docs/how-to/lake-on-s3.md)",
        )


def _race(objects: ObjectStore, key: str) -> int:
    """Returns the number of writers whose put succeeded."""
    start = Barrier(len(_CONTENTS))

    def wins(content: bytes) -> bool:
        start.wait()
        try:
            objects.put_if_absent(key, content)
        except ObjectExists:
            return False
        return True

    with ThreadPoolExecutor(len(_CONTENTS)) as threads:
        return sum(threads.map(wins, _CONTENTS))
