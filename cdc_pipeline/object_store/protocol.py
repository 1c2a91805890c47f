"""The protocol that every object store implements."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow.fs

from cdc_pipeline.errors import ObjectExists


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """`written`: a text that changes whenever the object is written again, for objects of other writers.

    `written_at`: when that was last, in microseconds since 1970, by the store's clock; None if it is not known.
    """

    key: str
    size_bytes: int
    written: str = field(default="", compare=False)
    written_at: int | None = field(default=None, compare=False)


class ObjectStore(Protocol):
    """Keys are relative to the lake's root, with '/' between components that `areas` has encoded."""

    @property
    def url(self) -> str:
        """The root as users write it: `file:///data/lake` or `s3://bucket/prefix`, without a slash at the end."""

    def prove(self) -> None:
        """Raises SettingsError unless one of two writers of an object wins. Call it before writing by other means."""

    def put_if_absent(self, key: str, content: bytes) -> None:
        """Durable on return. Raises ObjectExists if the key has other bytes; the same bytes are a success."""

    def put_file_if_absent(self, key: str, source: Path) -> None:
        """The same for the content of a local file, without holding it in memory. The file may be consumed."""

    def overwrite(self, key: str, content: bytes) -> None:
        """Puts the object in place of any that is there. Durable on return.

        Readers get the bytes from before or the new ones, never a part. Only for objects that point to others, such as
        the `_last_checkpoint` of a Delta log, and for what a person may correct; of several writers the last one wins.
        """

    def get(self, key: str) -> bytes:
        """Returns the whole object. Raises ObjectMissing."""

    def copy_to(self, key: str, sink: BinaryIO) -> int:
        """Writes the object to an empty local file, and holds no more than a block of it in memory.

        Returns when the object was written last, in microseconds since 1970. Raises ObjectMissing, ObjectStoreAway, or
        SettingsError if it may not be read.
        """

    def head(self, key: str) -> ObjectInfo:
        """Returns the object's size. Raises ObjectMissing."""

    def list_prefix(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix` + '/' and is greater than `after`, in key order.

        The cost grows with the number of objects that are returned. On the path of a slice, pass `after` and take only
        the next few. Raises SettingsError for what may not be listed.
        """

    def unfinished(self, prefix: str, before: datetime | None = None) -> Iterator[ObjectInfo]:
        """Yields files that killed puts left below `prefix` + '/'. They are no objects: nothing else lists them.

        `before`: only those that were not written to since then; a younger one may be of a put that goes on.
        """

    def delete(self, key: str) -> None:
        """Deletes the object. Succeeds if there is none."""

    def delete_all(self, keys: Sequence[str]) -> None:
        """Deletes many objects. After an error, any of them may be deleted or not."""

    def spark_url(self, key: str) -> str:
        """The URL of the key for Spark: `file:/…` or `s3a://…`."""

    def filesystem(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """A pyarrow file system, and the path in it below which the keys are. For streaming Parquet."""


def object_exists(key: str) -> ObjectExists:
    return ObjectExists(
        f"{key} exists with other content",
        expected="no object, or the same bytes",
        remedy="two writers used one key: compare both before you continue",
    )
