"""An object store that is shown to let one writer win before the first object is put."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

import pyarrow.fs

from cdc_pipeline.object_store.conformance import refuse_unless_one_wins
from cdc_pipeline.object_store.protocol import ObjectInfo, ObjectStore


class ProvenObjectStore:
    """Who only reads pays nothing. Raises SettingsError at every put to a store that lets two writers win."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._lock = Lock()
        self._proven = False

    def prove(self) -> None:
        """Once per store and process; also for those who are about to write by other means."""
        with self._lock:
            if not self._proven:
                refuse_unless_one_wins(self._objects)
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

    def get(self, key: str) -> bytes:
        return self._objects.get(key)

    def head(self, key: str) -> ObjectInfo:
        return self._objects.head(key)

    def list_prefix(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._objects.list_prefix(prefix)

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
