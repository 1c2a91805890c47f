"""Exported files are read alike from every object store, in every format."""

import gzip
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.settings.change_files import CsvSettings
from cdc_pipeline.sources.files.exported_files import ExportedFiles
from cdc_pipeline.steps import Moment, no_step
from cdc_pipeline.types import text_of
from cdc_pipeline.types.mysql import parse_column_type, parseable_text
from cdc_pipeline.wiring.adapters import open_exported_files
from tests.support.change_files import csv_text, json_lines, parquet_bytes
from tests.support.pipelines import mysql_settings

TABLE = TableName.parse("shop.public.orders")
COLUMNS = {
    "id": "int8",
    "name": "text",
    "amount": "numeric(12,2)",
    "day": "date",
    "at": "timestamptz",
    "here": "boolean",
}
SCHEMA = TableSchema(columns=tuple(Column(name=name, type=kind) for name, kind in COLUMNS.items()), key=("id",))
ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "name": 'Ada, "A"\nL',
        "amount": "1.50",
        "day": "2026-01-01",
        "at": "2026-01-01 10:00:00+00",
        "here": True,
    },
    {"id": 2, "name": None, "amount": None, "day": None, "at": None, "here": None},
]


def copied(files: ExportedFiles) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for part in files.parts(TABLE, 0):
        for block in files.rows(TABLE, SCHEMA, part):
            assert block.unfit_rows == ()
            found += [tuple(row.values()) for row in block.rows.to_pylist()]
    return found


def without_nulls(rows: Sequence[dict[str, Any]]) -> bytes:
    return json_lines([{name: value for name, value in row.items() if value is not None} for row in rows])


@pytest.mark.parametrize(
    ("suffix", "write"),
    [(".csv", csv_text), (".jsonl", json_lines), (".json", without_nulls), (".parquet", parquet_bytes)],
)
def test_rows_are_those_of_the_table_in_every_format(
    objects: ObjectStore, suffix: str, write: Callable[[Sequence[dict[str, Any]]], bytes]
) -> None:
    began = datetime.now(UTC) - timedelta(seconds=2)
    objects.put_if_absent(f"deep/er/a{suffix}", write([row | {"extra": 1} for row in ROWS]))
    objects.put_if_absent(f"deep/b{suffix}.gz", gzip.compress(write(ROWS)))
    objects.put_if_absent("deep/_SUCCESS", b"")
    for hidden in ("_temporary/0", "deep/.staging"):
        objects.put_if_absent(f"{hidden}/c{suffix}", write(ROWS))
    files = ExportedFiles(objects=objects, csv=CsvSettings(), on_step=no_step)
    rows = copied(files)
    assert rows[:2] == rows[2:]
    assert [(row[0], row[1], str(row[2]), str(row[3]), row[5]) for row in rows[:2]] == [
        (1, 'Ada, "A"\nL', "1.50", "2026-01-01", True),
        (2, None, "None", "None", None),
    ]
    assert rows[0][4] == datetime(2026, 1, 1, 10, tzinfo=UTC)
    assert began <= files.oldest() <= datetime.now(UTC) + timedelta(seconds=2)


def test_a_pattern_chooses_files_and_a_header_may_be_missing(objects: ObjectStore) -> None:
    objects.put_if_absent("LOAD1.csv", b"2026-01-01,1,Ada,1.50,,,t\n")
    objects.put_if_absent("20260101.parquet", b"a change")
    files = ExportedFiles(
        objects=objects, csv=CsvSettings(header=False), leading=("ts",), only="LOAD*", on_step=no_step
    )
    assert [row[:2] for row in copied(files)] == [(1, "Ada")]
    objects.put_if_absent("ALL1.csv", b"2026-01-01 10:00+00,1,Ada,1.50,,t\n")
    declared = replace(files, leading=("at",), only="ALL*")
    assert [(row[0], row[4]) for row in copied(declared)] == [(1, datetime(2026, 1, 1, 10, tzinfo=UTC))]
    part = files.parts(TABLE, 0)[0]
    with pytest.raises(SnapshotError, match=r"the file LOAD1\.csv below .* was written again"):
        list(files.rows(TABLE, SCHEMA, {**part, "written": "before"}))
    with pytest.raises(SnapshotError, match=r"the file LOAD2\.csv below .* is gone"):
        list(files.rows(TABLE, SCHEMA, {**part, "file": "LOAD2.csv"}))


@pytest.mark.parametrize("checked", [0, 1], ids=["before it is checked", "before it is copied"])
def test_a_file_that_is_written_again_before_it_is_copied_is_refused(objects: ObjectStore, checked: int) -> None:
    objects.put_if_absent("a.jsonl", json_lines(ROWS))
    steps: list[Moment] = []

    def rewrite(_name: str, moment: Moment) -> None:
        if steps.count(Moment.AFTER) == checked:
            objects.overwrite("a.jsonl", json_lines(ROWS[:1]))
        steps.append(moment)

    files = ExportedFiles(objects=objects, csv=CsvSettings(), on_step=no_step)
    (part,) = files.parts(TABLE, 0)
    with pytest.raises(SnapshotError, match=r"the file a\.jsonl below .* was written again"):
        list(replace(files, on_step=rewrite).rows(TABLE, SCHEMA, part))


def test_a_row_whose_text_is_not_utf8_does_not_fit_and_the_others_are_copied(objects: ObjectStore) -> None:
    table, sink = pa.Table.from_pylist([{**row, "name": b"caf\xe9"} for row in ROWS[:1]] + ROWS[1:]), io.BytesIO()
    names = pa.Array.from_buffers(pa.string(), len(ROWS), table["name"].combine_chunks().buffers())
    pq.write_table(table.set_column(table.column_names.index("name"), "name", names), sink)
    objects.put_if_absent("a.parquet", sink.getvalue())
    files = ExportedFiles(objects=objects, csv=CsvSettings(), on_step=no_step)
    (block,) = files.rows(TABLE, SCHEMA)
    assert [(row.row, row.reason) for row in block.unfit_rows] == [
        (0, "a.parquet row 1: the value of name does not fit the lake's text")
    ]
    assert block.rows["id"].to_pylist() == [1, 2]


def exported(objects: ObjectStore, name: str, content: bytes) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    """The rows, and the numbers and reasons of those that do not fit."""
    objects.put_if_absent(name, content)
    rows, unfit = list[dict[str, Any]](), list[tuple[int, str]]()
    for block in ExportedFiles(objects=objects, csv=CsvSettings(), only=name, on_step=no_step).rows(TABLE, SCHEMA):
        unfit += [(len(rows) + row.row, row.reason) for row in block.unfit_rows]
        rows += block.rows.to_pylist()
    return rows, unfit


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"id,amount\nbroken\n1,2\n3,4\n"),
        ("a.jsonl", b"broken\n\n" + json_lines([{"name": "x"}])),
        ("b.jsonl", b"[]\n" * 70_000 + json_lines([{"name": "x"}] * 20)),
    ],
)
def test_a_column_that_is_missing_is_found_behind_records_that_cannot_be_read(
    objects: ObjectStore, name: str, content: bytes
) -> None:
    with pytest.raises(SnapshotError, match=rf"the file {name} has no column "):
        exported(objects, name, content)


@pytest.mark.parametrize("times", [1, 20], ids=["record by record", "column by column"])
def test_rows_keep_their_places_beside_blank_lines_and_rows_that_do_not_fit(objects: ObjectStore, times: int) -> None:
    texts = [
        '{"id":1,"name":"a","amount":"1.5"}',
        "",
        '{"id":2,"name":"b"}',
        "no record",
        '{"id":3,"name":"c","amount":"much"}',
        '{"id":null,"name":"d"}',
        '{"id":4,"extra":1}',
    ]
    rows, unfit = exported(objects, "a.jsonl", "".join(f"{text}\n" for text in texts * times).encode())
    assert [(row["id"], row["name"], row["amount"]) for row in rows] == [
        (1, "a", Decimal("1.50")),
        (2, "b", None),
        (None, None, None),
        (3, "c", None),
        (None, "d", None),
        (4, None, None),
    ] * times
    reasons = {
        2: (4, "is no JSON: Expecting value: line 1 column 1 (char 0)"),
        3: (5, "the value of amount does not fit the lake's numeric(12,2)"),
        4: (6, "the id column id is NULL"),
    }
    assert unfit == [
        (time * 6 + row, f"a.jsonl line {time * 7 + line}: {why}")
        for time in range(times)
        for row, (line, why) in reasons.items()
    ]


OCTETS = TableSchema(columns=(Column(name="id", type="int8"), Column(name="octets", type="bytea")), key=("id",))


@pytest.mark.parametrize(("suffix", "write"), [(".csv", csv_text), (".jsonl", json_lines), (".parquet", parquet_bytes)])
@pytest.mark.parametrize("times", [1, 20], ids=["few", "many"])
def test_bytes_of_a_full_load_of_dms_are_those_of_its_changes(
    objects: ObjectStore, suffix: str, write: Callable[[Sequence[dict[str, Any]]], bytes], times: int
) -> None:
    """As base64, which they may be by chance, they would be other bytes."""
    texts = ["0x010203AB", "AABBCCDD", "AP8=", None]
    rows = [{"id": number, "octets": text} for number, text in enumerate(texts * times)]
    objects.put_if_absent(f"LOAD1{suffix}", write(rows))
    files = ExportedFiles(objects=objects, csv=CsvSettings(), of_dms=True, on_step=no_step)
    (block,) = files.rows(TABLE, OCTETS)
    assert block.rows["octets"].to_pylist() == [b"\1\2\3\xab", None, b"\0\xff", None] * times
    assert [(row.row, row.column) for row in block.unfit_rows] == [(4 * time + 1, "octets") for time in range(times)]


@pytest.mark.parametrize("kind", ["bit", "varbit"])
@pytest.mark.parametrize("times", [1, 20], ids=["few", "many"])
def test_what_is_no_bits_does_not_fit_in_what_copy_wrote(objects: ObjectStore, kind: str, times: int) -> None:
    """Every text would fit the lake, which has bits as texts."""
    schema = TableSchema(columns=(Column(name="id", type="int8"), Column(name="bits", type=kind)), key=("id",))
    texts = ["101", "", None, "xyz", "oA==", "0x05", "1 0"]
    objects.put_if_absent(
        "a.csv", csv_text([{"id": number, "bits": text} for number, text in enumerate(texts * times)])
    )
    files = ExportedFiles(objects=objects, csv=CsvSettings(), of_postgres=True, on_step=no_step)
    (block,) = files.rows(TABLE, schema)
    assert block.rows["bits"].to_pylist() == ["101", "", *[None] * 5] * times
    assert [row.row % 7 for row in block.unfit_rows] == [3, 4, 5, 6] * times


def of_mysql(objects: ObjectStore, name: str, content: bytes, kind: str) -> tuple[list[str | None], list[int]]:
    """The values of the column `value`, and the rows that do not fit."""
    schema = TableSchema(columns=(Column(name="id", type="int8"), Column(name="value", type=kind)), key=("id",))
    objects.put_if_absent(name, content)
    files = ExportedFiles(objects=objects, csv=CsvSettings(), only=name, of_mysql=True, on_step=no_step)
    (block,) = files.rows(TABLE, schema)
    return block.rows["value"].to_pylist(), [row.row for row in block.unfit_rows]


@pytest.mark.parametrize("times", [1, 20], ids=["few", "many"])
def test_bits_of_an_export_of_mysql_are_those_of_its_snapshot(objects: ObjectStore, times: int) -> None:
    """Its bytes begin with the highest bits, and Debezium's with the lowest."""
    octets = [b"\x01\x02", None, b"\1\2\3", b"\xff\0"] * times
    rows = parquet_bytes([{"id": number, "value": value} for number, value in enumerate(octets)])
    by_snapshot = parseable_text(parse_column_type("bit(16)"))
    assert by_snapshot is not None
    expected = [by_snapshot(octets).decode() for octets in (b"\x01\x02", b"\xff\0")]
    values, unfit = of_mysql(objects, "a.parquet", rows, "bit(16)")
    assert values == [expected[0], None, None, expected[1]] * times
    assert unfit == [4 * time + 2 for time in range(times)]


def test_exports_of_a_pipeline_over_mysql_are_read_as_its_own(tmp_path: Path) -> None:
    mysql = mysql_settings(tmp_path, "mysql://reader@nowhere", "shop", [{"name": "orders"}])
    opened = open_exported_files(mysql, f"file://{tmp_path}", only="", header=None, on_step=no_step)
    assert (opened.of_mysql, opened.of_postgres, opened.of_dms) == (True, False, False)


def test_texts_of_bits_of_an_export_of_mysql_are_digits_or_bytes(objects: ObjectStore) -> None:
    texts = ["00000001", "10100000", "oA==", "\\xa0", None, "101", "1 000000", "oAA=", 101, True]
    rows = json_lines([{"id": number, "value": value} for number, value in enumerate(texts)])
    values, unfit = of_mysql(objects, "a.jsonl", rows, "bit(8)")
    assert values == ["00000001", *["10100000"] * 3, *[None] * 5, "00000001"]
    assert unfit == [5, 6, 7, 8]
    assert of_mysql(objects, "b.jsonl", json_lines([{"id": 1, "value": "BQ=="}]), "bit(5)") == (["00101"], [])


@pytest.mark.parametrize(("suffix", "write"), [(".csv", csv_text), (".jsonl", json_lines), (".parquet", parquet_bytes)])
def test_times_of_an_export_of_mysql_have_all_its_hours(
    objects: ObjectStore, suffix: str, write: Callable[[Sequence[dict[str, Any]]], bytes]
) -> None:
    texts = ["-01:00:00", "838:59:59.500", "10:00:00.000", "839:00:00", "-10:60:00", None]
    rows = write([{"id": number, "value": value} for number, value in enumerate(texts)])
    values, unfit = of_mysql(objects, f"a{suffix}", rows, "time")
    assert values == ["-01:00:00", "838:59:59.5", "10:00:00", None, None, None]
    assert unfit == [3, 4]


@pytest.mark.parametrize(("suffix", "write"), [(".csv", csv_text), (".jsonl", json_lines), (".parquet", parquet_bytes)])
@pytest.mark.parametrize("kind", ["date", "numeric(12,2)", "int4[]", "shop.mood", "bytea"])
def test_a_column_that_is_kept_as_text_is_read_as_one(
    objects: ObjectStore, suffix: str, write: Callable[[Sequence[dict[str, Any]]], bytes], kind: str
) -> None:
    schema = TableSchema(columns=(Column(name="id", type="int8"), Column(name="text", type=text_of(kind))), key=("id",))
    objects.put_if_absent(f"a{suffix}", write([{"id": 1, "text": "0044-02-01 BC"}, {"id": 2, "text": None}]))
    files = ExportedFiles(objects=objects, csv=CsvSettings(), of_postgres=True, on_step=no_step)
    (block,) = files.rows(TABLE, schema)
    assert (block.rows["text"].to_pylist(), block.unfit_rows) == (["0044-02-01 BC", None], ())
