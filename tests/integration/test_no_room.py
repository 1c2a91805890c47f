"""A folder when the system refuses to write more."""

import gzip
import resource
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import randbytes
from tempfile import gettempdir
from uuid import uuid4

import pyarrow as pa
import pytest

from cdc_pipeline.errors import ObjectStoreAway, SetupError, SourceError
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.operations.source_copies import SourceCopies
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.settings.change_files import ChangeFilesSource, CsvSettings
from cdc_pipeline.sources.copied_rows import CopiedRows
from cdc_pipeline.sources.files.listed_files import ListedFiles
from cdc_pipeline.sources.files.record_formats import FileLayout
from cdc_pipeline.sources.known import Document, KnownTable
from cdc_pipeline.steps import no_step
from cdc_pipeline.time_slice import utc_now
from cdc_pipeline.types import arrow_schema
from tests.support.eventually import eventually

MOST_BYTES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOfRandomBytes:
    """A table of the source with one row, which does not compress."""

    schema: TableSchema
    size_bytes: int

    def columns(self, table: KnownTable) -> tuple[Column, ...]:
        del table
        return self.schema.columns

    def description(self, table: KnownTable) -> None:
        del table

    def parts(self, table: TableName, file_bytes: int) -> Sequence[Document]:
        del table, file_bytes
        return ()

    def rows(self, table: TableName, schema: TableSchema, part: Document | None = None) -> Iterator[CopiedRows]:
        del table, part
        values = pa.array([randbytes(self.size_bytes)], type=pa.binary())
        yield CopiedRows(rows=pa.record_batch([values], schema=arrow_schema(schema)), unfit_rows=())


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


LARGE = b"note\n" + 25_000 * (b"x" * MOST_BYTES + b"\n")


@pytest.mark.parametrize("large", ["large/1.csv", "large/1.csv.gz"], ids=["copied", "unpacked"])
def test_a_change_file_that_finds_no_room_stops_its_folder_alone_until_there_is_some(
    tmp_path: Path, large: str
) -> None:
    """A packed file has room for its copy."""
    packed = gzip.compress(LARGE)
    stored = packed if large.endswith(".gz") else LARGE
    for name, content in ((large, stored), ("small/1.csv", b"note\nx\n"), ("small/2.csv", b"note\ny\n")):
        LocalObjectStore(tmp_path).put_if_absent(name, content)
    settings, numbers = {"kind": "change_files", "path": str(tmp_path), "format": "upserts"}, count(1)
    files = ListedFiles(
        objects=LocalObjectStore(tmp_path),
        layouts=dict.fromkeys(("large", "small"), FileLayout(csv=CsvSettings())),
        settings=ChangeFilesSource.model_validate(settings),
        offset=0,
        begun={},
        begin=lambda _: next(numbers),
        on_step=no_step,
        digest="",
    )
    with closing(files):
        with files_no_longer_than(len(packed)):
            read = [line.file for _ in range(2) for line in files.next_lines(1, fresh=True)]
            with pytest.raises(SourceError, match="finds no room in"):
                files.check()
        assert read == ["small/1.csv", "small/2.csv"]
        assert eventually(lambda: [line.file for line in files.next_lines(1, fresh=True)] == [large])


def test_a_copy_of_the_source_that_finds_no_room_names_the_folder_and_leaves_nothing_behind(tmp_path: Path) -> None:
    table = TableName.parse("shop.public.things")
    schema = TableSchema(columns=(Column(name="content", type="bytea"),), key=())
    objects = LocalObjectStore(tmp_path)
    copies = SourceCopies(objects=objects, clock=utc_now, new_id=uuid4, on_step=no_step)
    source = CopyOfRandomBytes(schema=schema, size_bytes=100 * MOST_BYTES)
    with (
        files_no_longer_than(MOST_BYTES),
        pytest.raises(SetupError, match=f"shop.public.things finds no room in the folder {gettempdir()}"),
        copies.of(table, source, schema),
    ):
        pass
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    with copies.of(table, source, schema) as copied:
        assert objects.head(copied.key).size_bytes > 100 * MOST_BYTES
