"""A folder when the system refuses to write more."""

import gzip
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from cdc_pipeline.errors import ObjectStoreAway, SourceAway
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.settings.change_files import CsvSettings
from cdc_pipeline.sources.files.record_file import RecordFile
from cdc_pipeline.sources.files.record_formats import FileLayout

MOST_BYTES = 1000


@contextmanager
def files_no_longer_than(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_refused_object_is_not_there_leaves_nothing_behind_and_can_be_put_later(tmp_path: Path) -> None:
    objects = LocalObjectStore(tmp_path)
    with files_no_longer_than(MOST_BYTES), pytest.raises(ObjectStoreAway, match="cannot be written") as refused:
        objects.put_if_absent("a/b", bytes(2 * MOST_BYTES))
    assert refused.value.retryable
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    objects.put_if_absent("a/b", bytes(2 * MOST_BYTES))
    assert objects.head("a/b").size_bytes == 2 * MOST_BYTES


def test_a_change_file_that_finds_no_room_to_be_unpacked_is_not_called_damaged(tmp_path: Path) -> None:
    objects = LocalObjectStore(tmp_path)
    packed = gzip.compress(b"note\n" + 25_000 * (b"x" * MOST_BYTES + b"\n"))
    objects.put_if_absent("a.csv.gz", packed)
    with files_no_longer_than(len(packed)), pytest.raises(SourceAway, match="cannot be unpacked into"):
        RecordFile(objects, "a.csv.gz", FileLayout(csv=CsvSettings()))
    with closing(RecordFile(objects, "a.csv.gz", FileLayout(csv=CsvSettings()))) as file:
        assert not file.is_read
