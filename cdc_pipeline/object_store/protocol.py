"""What the pipeline asks of an object store."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow.fs

from cdc_pipeline.errors import ObjectExists


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    key: str
    size_bytes: int


class ObjectStore(Protocol):
    """Keys are relative to the lake's root, separated by '/', already encoded (`areas`)."""

    @property
    def url(self) -> str:
        """Root as users write it: `file:///data/lake` or `s3://bucket/prefix`, without a slash at the end."""

    def put_if_absent(self, key: str, content: bytes) -> None:
        """Durable on return. Raises ObjectExists when another object holds the key; the same bytes are a success."""

    def put_file_if_absent(self, key: str, source: Path) -> None:
        """The same for the content of a local file, without holding it in memory; `source` may be consumed."""

    def get(self, key: str) -> bytes:
        """Whole object. Raises ObjectMissing."""

    def head(self, key: str) -> ObjectInfo:
        """Raises ObjectMissing."""

    def list_prefix(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix` + '/', in key order. Never on the slice path: its cost grows."""

    def delete(self, key: str) -> None:
        """Succeeds also when there is no such object."""

    def delete_all(self, keys: Sequence[str]) -> None:
        """The same for many. What is raised is about one of them; of the others any may be gone."""

    def spark_url(self, key: str) -> str:
        """The same place as Spark writes it (`file:/…` or `s3a://…`)."""

    def delta_url(self, key: str) -> str:
        """The same place as the `deltalake` package takes it (a path or `s3://…`)."""

    def filesystem(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """A pyarrow file system and the root below which keys lie, for streaming Parquet in and out."""


def object_exists(key: str) -> ObjectExists:
    return ObjectExists(
        f"another object is already stored as {key}",
        expected="no object, or the same bytes",
        remedy="two writers chose one name: compare both before going on",
    )
