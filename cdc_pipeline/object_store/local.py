"""A local folder as an object store."""

import errno
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

import pyarrow.fs

from cdc_pipeline.errors import ObjectMissing, ObjectStoreAway, SettingsError
from cdc_pipeline.object_store.protocol import ObjectInfo, object_exists

_PENDING = ".pending-"
_OWNER_AND_GROUP = 0o750
_BLOCK_BYTES = 1 << 20
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
"""What `link` answers there. A folder without rights answers EACCES; Linux lets everybody link files of their own."""


class LocalObjectStore:
    """Put-if-absent is a hard link to a file that is complete and synced, so a half-written object never has a key.

    A missing root folder is created with access for its owner and group only.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def prove(self) -> None:
        """Does nothing: of several links under one name a file system makes one."""

    def put_if_absent(self, key: str, content: bytes) -> None:
        with self._pending(key) as pending:
            _write(pending, content)
            self._link(pending, key)

    def overwrite(self, key: str, content: bytes) -> None:
        with self._pending(key) as pending:
            _write(pending, content)
            pending.replace(self._path(key))
            _sync_folder(self._path(key).parent)

    def put_file_if_absent(self, key: str, source: Path) -> None:
        with source.open("rb") as content, self._pending(key) as pending:
            with pending.open("wb") as file:
                while block := content.read(_BLOCK_BYTES):
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            self._link(pending, key)

    def get(self, key: str) -> bytes:
        with self._read(key):
            return self._path(key).read_bytes()

    def copy_to(self, key: str, sink: BinaryIO) -> int:
        with self._read(key), self._path(key).open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                sink.write(block)
            return os.fstat(file.fileno()).st_mtime_ns // 1_000

    def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        with self._read(key):
            if not path.is_file():
                raise self._missing(key)
            return _info(key, path.stat())

    def list_prefix(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Reads the names of every folder that can have keys after `after`, and the size of returned files alone."""
        with self._read(prefix):
            for key in _keys(self._path(prefix), f"{prefix}/" if prefix else "", after):
                with suppress(FileNotFoundError):  # deleted since its folder was read
                    yield _info(key, self._path(key).stat())

    def unfinished(self, prefix: str, before: datetime | None = None) -> Iterator[ObjectInfo]:
        for folder, _, names in os.walk(self._path(prefix)):
            for path in (Path(folder) / name for name in names if name.startswith(_PENDING)):
                with suppress(FileNotFoundError):  # its put has ended meanwhile
                    found = path.stat()
                    if before is None or found.st_mtime < before.timestamp():
                        yield _info(path.relative_to(self._root).as_posix(), found)

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def delete_all(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)

    def spark_url(self, key: str) -> str:
        """Not a quoted URI: Spark takes the text after the scheme literally as the path."""
        return f"file://{self._path(key)}"

    def filesystem(self) -> tuple[pyarrow.fs.FileSystem, str]:
        return pyarrow.fs.LocalFileSystem(), str(self._root)

    def _path(self, key: str) -> Path:
        return self._root / key

    @contextmanager
    def _pending(self, key: str) -> Iterator[Path]:
        """Yields the path of a temporary file, and deletes it after the block: it must not keep a full disk full.

        The folders that are new are durable before, since the object is durable only together with them.
        """
        folder = self._path(key).parent
        try:
            new = list(takewhile(lambda each: not each.exists(), (folder, *folder.parents)))
            self._root.mkdir(mode=_OWNER_AND_GROUP, parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            for made in new:
                _sync_folder(made.parent)
            pending = folder / f"{_PENDING}{uuid.uuid4().hex}"
            try:
                yield pending
            finally:
                pending.unlink(missing_ok=True)
        except OSError as error:
            raise ObjectStoreAway(
                f"{key} cannot be written under {self.url}: {error.strerror}",
                expected="free space and a writable folder",
                remedy="free space or correct the folder's permissions; the same call is safe to repeat",
            ) from error

    @contextmanager
    def _read(self, key: str) -> Iterator[None]:
        """Words what the operating system says to reading a file or listing a folder."""
        try:
            yield
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise self._missing(key) from error
        except PermissionError as error:
            raise SettingsError(
                f"{key or 'the folder'} cannot be read under {self.url}: {error.strerror}: {error.filename}",
                expected="files and folders that this user may read",
                remedy="correct their permissions",
            ) from error
        except OSError as error:
            raise ObjectStoreAway(
                f"{key or 'the folder'} cannot be read under {self.url}: {error.strerror}",
                expected="its content",
                remedy="the same call is safe to repeat",
            ) from error

    def _link(self, pending: Path, key: str) -> None:
        path = self._path(key)
        try:
            os.link(pending, path)
        except FileExistsError as error:
            if path.read_bytes() != pending.read_bytes():
                raise object_exists(key) from error
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            raise SettingsError(
                f"the file system of {self.url} makes no hard links: {error.strerror}",
                expected="hard links, by which one of several writers of an object wins",
                remedy="move the lake to a file system that has them; for a bucket, write lake: s3://bucket/prefix",
            ) from error
        _sync_folder(path.parent)

    def _missing(self, key: str) -> ObjectMissing:
        return ObjectMissing(f"no object {key} under {self.url}", expected="an object that was written earlier")


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _keys(folder: Path, below: str, after: str) -> Iterator[str]:
    """Yields the keys of the files in `folder` and its subfolders that are greater than `after`, in their order.

    Follows no symbolic link to a folder.
    """
    try:
        with os.scandir(folder) as found:
            entries = sorted(entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in found)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in entries:
        key = below + name
        if name.endswith("/"):
            if after < key or after.startswith(key):
                yield from _keys(folder / name, key, after)
        elif key > after and not name.startswith(_PENDING) and (folder / name).is_file():
            yield key


def _info(key: str, found: os.stat_result) -> ObjectInfo:
    written = f"{found.st_ino} {found.st_mtime_ns} {found.st_size}"
    return ObjectInfo(key=key, size_bytes=found.st_size, written=written, written_at=found.st_mtime_ns // 1_000)
