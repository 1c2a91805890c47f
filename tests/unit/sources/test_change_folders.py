"""Which change files are read: what is no data, what may go, and what stops one folder alone."""

import codecs
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc_pipeline.errors import SourceError, SourceGap
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.settings.change_files import ChangeFilesSource
from cdc_pipeline.sources.files.complete_files import CompleteFiles
from cdc_pipeline.sources.files.csv_batches import OCTETS
from tests.support.change_files import ORDERS, ChangeFolder, Row, csv_text, parquet_bytes
from tests.support.eventually import eventually

DMS = {"format": "dms"}
OTHER = {**ORDERS, "name": "shop.public.other"}
FIRST = "public/orders/1.csv"
ROWS = [{"Op": "I", "id": id_, "name": "Ada", "amount": "9.50"} for id_ in range(1, 5)]
HEADER = ",".join(ROWS[0])


def ids(folder: ChangeFolder) -> list[int]:
    """Those of a reader that begins now; nothing has stopped it."""
    read = folder.read()
    assert read.error is None
    return [row["id"] for _, row in read.changes]


def test_a_file_without_rows_may_go_once_it_was_read(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source=DMS)
    folder.write("public/orders/1.csv", csv_text(ROWS[:1]))
    empty = [folder.write(f"public/orders/{number}.csv", HEADER + "\n") for number in (2, 3)]
    (end, place) = list(folder.read().places.items())[-1]
    empty[0].unlink()
    folder.write("public/orders/4.csv", csv_text(ROWS[1:]))
    rest = folder.read(place, end)
    assert (len(rest.changes), rest.error) == (3, None)
    begun = [name.partition(" ") for name in folder.begun.values()]
    assert [name for name, _, _ in begun] == [f"public/orders/{number}.csv" for number in (1, 3, 4)]
    assert [rest for _, _, rest in begun] == ["", "without records", ""]
    (end, place) = list(rest.places.items())[-1]
    assert folder.read(place, end).changes == []


@pytest.mark.parametrize("order_by", [[], ["id"]])
def test_a_file_without_rows_may_go_though_no_row_behind_it_was_registered(tmp_path: Path, order_by: list[str]) -> None:
    """Not so a file with rows: nobody has them yet."""
    folder = ChangeFolder(folder=tmp_path, source={**DMS, "order_by": order_by})
    empty = folder.write("public/orders/1.csv", HEADER + "\n")
    rows = [folder.write(f"public/orders/{number}.csv", csv_text(ROWS[:1])) for number in (2, 3)]
    assert len(folder.read().changes) == 2
    assert len(folder.begun) == 3
    assert len(folder.read().changes) == 2
    empty.unlink()
    assert ids(folder) == [1, 1]
    rows[0].unlink()
    with pytest.raises(SourceGap, match=r"orders/2\.csv is gone"):
        folder.read()


class LosingFolder(ChangeFolder):
    """Loses its second file as soon as the first one is begun."""

    def begin(self, number: int, name: str) -> int:
        (self.folder / "files/public/orders/2.csv").unlink(missing_ok=True)
        return ChangeFolder.begin(self, number, name)


def test_a_listed_file_that_goes_before_it_is_begun_stops_its_folder_until_the_next_start(tmp_path: Path) -> None:
    folder = LosingFolder(folder=tmp_path, source=DMS)
    for number in (1, 2, 3):
        folder.write(f"public/orders/{number}.csv", csv_text(ROWS[:number]))
    read = folder.read()
    assert (len(read.changes), type(read.error)) == (1, SourceError)
    assert "reading goes on with it, or without it once the consumer is started again" in str(read.error)
    folder.begun.clear()
    assert len(folder.read().changes) == 4


@pytest.mark.parametrize("header", [True, False])
def test_the_rest_of_a_file_is_left_out_once_its_table_is_listed_no_more(tmp_path: Path, *, header: bool) -> None:
    folder = ChangeFolder(folder=tmp_path, source={**DMS, "csv": {"header": header}}, tables=(OTHER, ORDERS))
    content = csv_text(ROWS) if header else csv_text(ROWS).partition(b"\n")[2]
    folder.write("public/other/1.csv", content)
    folder.write(FIRST, content)
    (end, place), *_ = folder.read().places.items()
    for tables, rows in (((ORDERS,), 4), (folder.tables, 7)):
        folder = replace(folder, tables=tables, begun={1: "public/other/1.csv"})
        read = folder.read(place, end)
        assert (len(read.changes), read.error) == (rows, None)


def test_a_folder_is_not_changed_while_a_file_is_read_in_part(tmp_path: Path) -> None:
    old = ChangeFolder(folder=tmp_path, source={**DMS, "folder": "old/{table}"})
    old.write("old/orders/1.csv", csv_text(ROWS))
    (end, place), *_, (last_end, last_place) = old.read().places.items()
    new = ChangeFolder(folder=tmp_path, source={**DMS, "folder": "new/{table}"}, begun=old.begun)
    new.write("new/orders/2.csv", csv_text(ROWS[:1]))
    with pytest.raises(SourceError, match=r"was read in part, .* and cdc quarantine replay --all, and change"):
        new.read(place, end)
    assert len(new.read(last_place, last_end).changes) == 1


@contextmanager
def as_nobody() -> Iterator[None]:
    """With the rights of a user who owns nothing: root may read everything.

    Python remembers that it could not load a codec, and such a user may not read root's Python: it is loaded before.
    """
    codecs.lookup(OCTETS)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("refused", ["public/orders", FIRST], ids=["folder", "file"])
def test_what_may_not_be_read_stops_its_table_and_no_other(refused: str) -> None:
    with tempfile.TemporaryDirectory() as path:
        folder = ChangeFolder(folder=Path(path), source=DMS, tables=(ORDERS, OTHER))
        folder.folder.chmod(0o755)
        folder.write(FIRST, csv_text(ROWS[:1]))
        folder.write("public/other/1.csv", csv_text(ROWS[:2]))
        place = folder.folder / "files" / refused
        place.chmod(0)
        with as_nobody():
            read = folder.read()
        assert len(read.changes) == 2
        assert isinstance(read.error, SourceError)
        assert f"{refused} cannot be read under" in str(read.error)
        assert not read.error.outage
        place.chmod(0o755)
        (end, reached) = list(read.places.items())[-1]
        again = folder.read(reached, end)
        assert (len(again.changes), again.error) == (1, None)


def test_what_lies_in_a_hidden_folder_below_the_tables_is_no_data(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source={**DMS, "folder": "_raw/{table}"})
    for hidden in ("_temporary/0", ".staging", "day=1/_temporary"):
        folder.write(f"_raw/orders/{hidden}/1.csv", "unfinished")
    folder.write("_raw/orders/_day=1/1.csv", csv_text(ROWS))
    assert ids(folder) == [1, 2, 3, 4]


@pytest.mark.parametrize("content", ["", "\n", "\r\n\r\n", HEADER, f"\n{HEADER}", f"{HEADER}\n", f"{HEADER}\r\n\r\n"])
@pytest.mark.parametrize("header", [True, False])
def test_a_csv_file_without_rows_is_whole(tmp_path: Path, content: str, *, header: bool) -> None:
    folder = ChangeFolder(folder=tmp_path, source={**DMS, "csv": {"header": header}})
    folder.write(FIRST, content if header else content.replace(HEADER, ""))
    folder.write("public/orders/2.csv", csv_text(ROWS) if header else "I,7,Ada,9.50")
    assert ids(folder) == ([1, 2, 3, 4] if header else [7])


ROW = "I,8,Ada,9.50"
KEYLESS = {**ORDERS, "id": []}
UPSERTS = {"format": "upserts", "folder": "{schema}/{table}"}


@pytest.mark.parametrize("rows", [f"{ROW}\n", ROW, f"{ROW}\r\n\r\n", f"{ROW}\nI,9,Eve,1.00\n"])
@pytest.mark.parametrize("order_by", [[], ["id"]])
def test_a_row_where_the_names_of_the_columns_belong_stops_its_folder(
    tmp_path: Path, rows: str, order_by: list[str]
) -> None:
    """AWS DMS writes no names unless `AddColumnName` is set. The row would be lost."""
    folder = ChangeFolder(folder=tmp_path, source={**DMS, "order_by": order_by}, tables=(ORDERS, OTHER))
    folder.write(FIRST, csv_text(ROWS))
    folder.write("public/orders/2.csv", rows)
    folder.write("public/other/1.csv", csv_text(ROWS[:1]))
    read = folder.read()
    assert (len(read.changes), read.unfit) == (5, [])
    assert "the file public/orders/2.csv has no column Op; it has I, 8, Ada, 9.50; " in str(read.error)
    assert "public/orders/2.csv" not in folder.begun.values()
    (end, place) = list(read.places.items())[-1]
    folder.write("public/orders/2.csv", f"{HEADER}\n{rows}")
    again = folder.read(place, end)
    assert ([row["id"] for _, row in again.changes][:1], again.error) == ([8], None)


@pytest.mark.parametrize(("table", "missing"), [(ORDERS, "id"), (KEYLESS, "id, name, amount")])
def test_rows_without_an_operation_are_no_names_either(tmp_path: Path, table: dict[str, Any], missing: str) -> None:
    folder = ChangeFolder(folder=tmp_path, source=UPSERTS, tables=(table,))
    folder.write(FIRST, "id,name,amount\n1,Ada,9.50\n")
    folder.write("public/orders/2.csv", "2,Eve,1.00\n")
    read = folder.read()
    assert len(read.changes) == 1
    assert f"2.csv has no column {missing}; it has 2, Eve, 1.00" in str(read.error)


@pytest.mark.parametrize("kept", [["name"], ["id", "amount"]])
@pytest.mark.parametrize("write", [csv_text, parquet_bytes])
def test_a_file_may_lack_columns_that_not_every_row_needs(
    tmp_path: Path, kept: list[str], write: Callable[[Sequence[Row]], bytes]
) -> None:
    """The time is that of the file then. A row without its id is kept in quarantine."""
    folder = ChangeFolder(folder=tmp_path, source={**DMS, "time_column": "ts"})
    folder.write(FIRST, csv_text([{"ts": "2026-01-01 10:00:00", **ROWS[0]}]))
    fewer = [{name: row[name] for name in ("Op", *kept)} for row in ROWS[1:]]
    folder.write(f"public/orders/2.{'csv' if write is csv_text else 'parquet'}", write(fewer))
    read = folder.read()
    assert (len(read.changes), len(read.unfit)) == ((4, 0) if "id" in kept else (1, 3))
    assert read.error is None


def test_a_file_whose_marker_never_comes_is_logged_once(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source={**DMS, "complete": "marked"})
    folder.write(FIRST, csv_text(ROWS))
    objects, settings = LocalObjectStore(tmp_path / "files"), folder.settings.source
    assert isinstance(settings, ChangeFilesSource)
    complete, found = CompleteFiles(objects, settings, longest=timedelta(0)), objects.head(FIRST)
    with capture_logs() as logs:
        assert [complete.has(found) for _ in range(3)] == [False] * 3
    assert [(log["event"], log["expected"]) for log in logs] == [("a file waits for its marker", f"{FIRST}.done")]
    folder.write(f"{FIRST}.done", "")
    assert complete.has(found)


def test_a_reader_that_begins_takes_a_file_that_settled_before_and_watches_any_other(tmp_path: Path) -> None:
    """A minute is left for clocks that differ. The file that is watched waits for its own time alone."""
    folder = ChangeFolder(folder=tmp_path, source={**DMS, "complete": "settled", "settled_after": "1s"})
    names = {age: f"public/orders/{number}.csv" for number, age in enumerate((3_600, 62, 30, -3_600), 1)}
    for age, name in names.items():
        path = folder.write(name, csv_text(ROWS[:1]))
        os.utime(path, (time.time() - age,) * 2)
    objects, settings = LocalObjectStore(tmp_path / "files"), folder.settings.source
    assert isinstance(settings, ChangeFilesSource)
    complete = CompleteFiles(objects, settings)
    assert {age: complete.has(objects.head(name)) for age, name in names.items()} == {
        3_600: True,
        62: True,
        30: False,
        -3_600: False,
    }
    assert ids(folder) == [1, 1]
    assert eventually(lambda: complete.has(objects.head(names[-3_600])))


def test_a_file_that_changed_while_it_was_watched_is_watched_again(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source={**DMS, "complete": "settled"})
    path = folder.write(FIRST, csv_text(ROWS))
    objects, settings = LocalObjectStore(tmp_path / "files"), folder.settings.source
    assert isinstance(settings, ChangeFilesSource)
    complete = CompleteFiles(objects, settings)
    assert not complete.has(objects.head(FIRST))
    os.utime(path, (0, 0))
    assert not complete.has(objects.head(FIRST))
