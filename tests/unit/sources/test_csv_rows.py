"""CSV files beyond one block of Arrow's reader, and CSV files that are cut off: no row is lost, moved or shortened."""

import gzip
import io
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.settings.change_files import CsvSettings
from cdc_pipeline.sources.files.csv_batches import OCTETS, UTF8, csv_batches
from cdc_pipeline.sources.files.record_blocks import BatchBlock
from cdc_pipeline.sources.files.record_file import RecordFile
from cdc_pipeline.sources.files.record_formats import FileLayout
from tests.support.change_files import ChangeFolder

WITHOUT_HEADER = CsvSettings(header=False)
MIB = 1 << 20


def text_of(rows: int, width: int) -> str:
    """Every third row has one field, also the first and the last one. A blank line is no row."""
    wide = "x" * width
    return "".join(f"{row}\n" if row % 3 == 0 else f"{row},{wide}\n\n" for row in range(rows))


def lines_of(rows: int, width: int) -> list[bytes]:
    unread = b'{"_cdc_unread":"%d","_cdc_why":"has 1 fields, where the file has 2 columns"}'
    good = b'{"id":"%d","name":"' + b"x" * width + b'"}'
    return [(good if row % 3 else unread) % row for row in range(rows)]


@pytest.mark.parametrize("settings", [CsvSettings(), WITHOUT_HEADER], ids=["header", "no header"])
@pytest.mark.parametrize("encoding", [UTF8, OCTETS])
def test_rows_with_a_wrong_number_of_fields_keep_their_places_at_every_opening(
    settings: CsvSettings, encoding: str
) -> None:
    content = ("id,name\n" * settings.header + text_of(400, 90)).encode()
    for block_bytes in (200, 500, 1_000, 5_000) * 4:
        batches = csv_batches(partial(io.BytesIO, content), settings, ("id", "name"), encoding, block_bytes)
        blocks = [BatchBlock(batch=batch) for batch in batches]
        assert [block.line(row) for block in blocks for row in range(block.rows)] == lines_of(400, 90)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", [UTF8, OCTETS])
def test_a_whole_file_of_any_size_is_read(line_end: str, encoding: str) -> None:
    for size in range(170):
        content = f"a,b{line_end}{f'1,2222{line_end}' * 40}1,{'x' * size}{line_end}".encode()
        batches = csv_batches(partial(io.BytesIO, content), CsvSettings(), ("a", "b"), encoding, 160)
        assert sum(batch.num_rows for batch in batches) == 41


def lines_from(file: RecordFile) -> Iterator[bytes]:
    while not file.is_read:
        block = file.take_block(MIB)
        yield from map(block.line, range(block.rows))


def test_a_long_file_is_read_on_after_any_row_of_wrong_fields(tmp_path: Path) -> None:
    rows, width = 24_000, 2_100
    (tmp_path / "a.csv").write_text("id,name\n" + text_of(rows, width))
    opened = partial(RecordFile, LocalObjectStore(tmp_path), "a.csv", FileLayout(csv=CsvSettings()))
    expected = lines_of(rows, width)
    with closing(opened()) as file:
        assert list(lines_from(file)) == expected
        digest = file.digest
    for line in (7, rows // 2, rows - 7):
        with closing(opened()) as file:
            file.skip(line, digest)
            assert list(lines_from(file)) == expected[line:]


@pytest.mark.parametrize("settings", [CsvSettings(), WITHOUT_HEADER], ids=["header", "no header"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_blank_line_is_a_row_where_a_file_has_one_column(settings: CsvSettings, line_end: str) -> None:
    """COPY writes NULL so. What stands before the header, and the end of the last line, are no rows."""
    texts = ["", "a", "", "", "b" * 40, *[""] * 70]
    lines = [*(["", "note"] if settings.header else []), *texts]
    for end, block_bytes in (("", 91), (line_end, 100), (line_end, MIB)):
        content = (line_end.join(lines) + line_end + end).encode()
        batches = csv_batches(partial(io.BytesIO, content), settings, ("note",), UTF8, block_bytes)
        notes = [note for batch in batches for note in batch["note"].to_pylist()]
        assert notes == [text or None for text in texts] + [None] * bool(end)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
@pytest.mark.parametrize(
    "end",
    [b'2,"hello wor', b'2,"hello\nwor\n', b'2,"hello ""', b'"2', b'2,"Zo\xeb', b'2,"' + b"x" * (17 * MIB)],
    ids=["in the line", "with a line end", "behind two quotes", "in the first column", "not UTF-8", "long"],
)
def test_a_csv_file_that_ends_inside_quotes_stops_its_folder(tmp_path: Path, suffix: str, end: bytes) -> None:
    folder = ChangeFolder(folder=tmp_path, source={"format": "upserts"})
    content = b"id,name\n1,a\n" + end
    folder.write("orders/1" + suffix, gzip.compress(content, 1) if suffix.endswith("z") else content)
    read = folder.read()
    assert (read.changes, read.unfit) == ([], [])
    assert f"the file orders/1{suffix} cannot be read: ValueError: it ends inside quotes" in str(read.error)


@pytest.mark.parametrize("end", ["2,b", '2,"b"', '2,b"c', '2,"b"c"', "\r\n2,", ",,,", "2,b,,"])
def test_a_csv_file_that_ends_outside_quotes_is_read(tmp_path: Path, end: str) -> None:
    folder = ChangeFolder(folder=tmp_path, source={"format": "upserts"})
    folder.write("orders/1.csv", f"id,name\n1,a\n{end}")
    read = folder.read()
    assert (len(read.changes) + len(read.unfit), read.error) == (2, None)


def test_a_row_that_is_longer_than_a_block_is_read(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source={"format": "upserts"})
    folder.write("orders/1.csv", f'id,name\n1,a\n2\n3,"{"x" * (40 * MIB)}"\n4,b\n')
    read = folder.read()
    assert [(row["id"], len(row["name"])) for _, row in read.changes] == [(1, 1), (3, 40 * MIB), (4, 1)]
    assert ["line 2: has 1 fields" in unfit.reason for unfit in read.unfit] == [True]


@pytest.mark.nightly
def test_a_row_of_more_than_half_a_gibibyte_stops_its_folder(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source={"format": "upserts"})
    parts = (b'id,name\n1,a\n2,"', *[b"x" * (64 * MIB)] * 9, b'"\n')
    folder.write("orders/1.csv.gz", b"".join(gzip.compress(part, 1) for part in parts))
    assert "it has a row of more than 256 MiB, or a quote that is never closed" in str(folder.read().error)
