"""Parquet's types at every place of a change file: each row is applied or quarantined, and the reader never ends."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_pipeline.sources.debezium.rows import LINE
from cdc_pipeline.sources.files.record_blocks import UNREAD
from tests.support.change_files import ChangeFolder
from tests.support.debezium_lines import PLACEHOLDER

ROWS = 20
COLUMNS = {"id": "bigint", "name": "text", "amount": "numeric(12,2)", "at": "timestamptz", "list": "int[]"}
FAR_DAY = 8_000_000
"""After the year 9999, the last one that Python knows."""
A_UUID = UUID("6f1e1a9e-0000-4000-8000-000000000001")
OF_DAYS = pa.struct([("a", pa.list_(pa.struct([("b", pa.date32())]))), ("c", pa.int64())])


def unchecked(texts: list[bytes], kind: pa.DataType, octets: pa.DataType) -> pa.Array:
    """A column of texts as a writer makes it that does not check whether they are UTF-8."""
    return pa.Array.from_buffers(kind, len(texts), pa.array(texts, octets).buffers())


UUIDS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([A_UUID.bytes] * ROWS, pa.binary(16)))
LISTS = pa.ListArray.from_arrays(list(range(ROWS + 1)), UUIDS)
DOCUMENTS = pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(['{"a":1}'] * ROWS))
LATIN = unchecked([b"caf\xe9", b"I"] * (ROWS // 2), pa.string(), pa.binary())
ODD = (
    pa.nulls(ROWS),
    pa.array([2**64 - 1 - n for n in range(ROWS)], pa.uint64()),
    pa.array([np.float16(n) for n in range(ROWS)], pa.float16()),
    pa.array([float("nan")] * ROWS),
    pa.array(["I", "U", "D", "T"] * (ROWS // 4), pa.string_view()),
    pa.array([b"\xff"] * ROWS, pa.binary_view()),
    pa.array([b"16 bytes of this"] * ROWS, pa.binary(16)),
    pa.array(["I"] * ROWS).dictionary_encode(),
    pa.array([Decimal(10) ** 60] * ROWS, pa.decimal256(70, 0)),
    pa.array([date(2020, 1, 1)] * ROWS, pa.date64()),
    pa.array([time(1, 2, 3)] * ROWS, pa.time32("s")),
    pa.array([10**18 + 1] * ROWS, pa.timestamp("ns")),
    pa.array([2**62] * ROWS, pa.timestamp("us", "Europe/Berlin")),
    pa.array([1] * ROWS, pa.duration("us")),
    pa.array([[1, None]] * ROWS),
    pa.array([[None]] * ROWS, pa.list_(pa.null())),
    pa.array([[1, 2]] * ROWS, pa.list_(pa.int64(), 2)),
    pa.array([{"a": 1}] * ROWS),
    pa.array([[("a", 1)]] * ROWS, pa.map_(pa.string(), pa.int64())),
    pa.array([1] * ROWS, pa.timestamp("us", "Mars/Phobos")),
    pa.array([[FAR_DAY]] * ROWS, pa.list_(pa.date32())),
    pa.array([{"a": [{"b": FAR_DAY}], "c": None}] * ROWS, OF_DAYS),
    pa.array([[(FAR_DAY, FAR_DAY)]] * ROWS, pa.map_(pa.date32(), pa.date32())),
    pa.array([[1]] * ROWS, pa.list_(pa.timestamp("us", "Mars/Phobos"))),
    UUIDS,
    LISTS,
    DOCUMENTS,
    pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1] * ROWS, pa.int8())),
    pa.array([Decimal("1.5")] * ROWS, pa.decimal32(5, 1)),
    pa.array([["a"]] * ROWS, pa.list_(pa.string_view())),
    pa.array([{"a": b"a"}] * ROWS, pa.struct([("a", pa.binary_view())])),
    pa.array([[timedelta(seconds=1)]] * ROWS, pa.list_(pa.duration("us"))),
    LATIN,
    unchecked([b"caf\xe9"] * ROWS, pa.large_string(), pa.large_binary()),
    pa.StructArray.from_arrays([LATIN], ["a"]),
)
PLACES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "the operation": (("Op",), {}),
    "the id": (("id",), {}),
    "the id before": (("BI_id",), {}),
    "both ids": (("id", "BI_id"), {}),
    "a value": (("name", "amount", "at", "list"), {}),
    "a column that is not listed": (("more",), {}),
    "the time": (("ts",), {"time_column": "ts"}),
    "the order": (("seq",), {"order_by": ["seq"]}),
}


@pytest.mark.parametrize("place", PLACES)
def test_no_type_ends_the_reader(tmp_path: Path, place: str) -> None:
    names, source = PLACES[place]
    for number, odd in enumerate(ODD):
        columns = {"Op": pa.array(["U"] * ROWS), "id": pa.array(range(ROWS)), "name": pa.array(["x"] * ROWS)}
        read = read_file(tmp_path / str(number), columns | dict.fromkeys(names, odd), **source)
        assert read == ROWS, odd.type


@pytest.mark.parametrize("type_of", [pa.string, pa.string_view, pa.large_string], ids=lambda made: made.__name__)
def test_a_row_is_the_same_in_every_type_of_text(tmp_path: Path, type_of: Callable[[], pa.DataType]) -> None:
    texts = {"Op": "U", "id": "7", "name": "x", "BI_id": "6"}
    folder = folder_with(tmp_path, {name: pa.array([text], type_of()) for name, text in texts.items()})
    assert [(operation, row["id"]) for operation, row in folder.read().changes] == [("d", 6), ("m", 7)]


def folder_with(path: Path, columns: dict[str, pa.Array], *, int96: bool = False, **more: Any) -> ChangeFolder:
    table = {"name": "shop.public.orders", "id": ["id"], "columns": COLUMNS}
    source = {"format": "upserts", "operation_column": "Op", "folder": "{table}", **more}
    folder = ChangeFolder(folder=path, source=source, tables=(table,))
    (path / "files" / "orders").mkdir(parents=True)
    pq.write_table(
        pa.table(columns), path / "files" / "orders" / "1.parquet", use_deprecated_int96_timestamps=int96 or None
    )
    return folder


def read_file(path: Path, columns: dict[str, pa.Array], **source: Any) -> int:
    """How many rows were applied or quarantined; a key change counts once."""
    read = folder_with(path, columns, **source).read()
    assert read.error is None
    return len({*read.versions}) + len(read.unfit)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1)])
def test_a_text_that_its_writer_did_not_mark_is_a_text_and_other_bytes_are_quarantined(
    tmp_path: Path, kind: pa.DataType
) -> None:
    columns = {"Op": [b"U"] * 3, "name": [b"a", b"\xff", None]}
    texts = {name: pa.array(values, kind) for name, values in columns.items()}
    read = folder_with(tmp_path, {"id": pa.array([1, 2, 3]), **texts}).read()
    assert [(row["id"], row["name"]) for _, row in read.changes] == [(1, "a"), (3, None)]
    (unfit,) = read.unfit
    assert unfit.reason == "orders/1.parquet line 2: the value of name does not fit the lake's text"
    assert unfit.payload[LINE] == r'{"id":2,"Op":"U","name":"\udcff"}'


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_a_row_whose_order_is_not_utf8_is_quarantined_and_comes_before_no_other(
    tmp_path: Path, kind: pa.DataType
) -> None:
    order = pa.array([b"5", b"\xff", b"7"], pa.binary())
    columns = {"id": pa.array([1, 1, 1]), "Op": pa.array(["U"] * 3), "name": pa.array(["a", "b", "c"])}
    read = folder_with(tmp_path, columns | {"seq": order.view(kind)}, order_by=["seq"]).read()
    assert [row["name"] for _, row in read.changes] == ["a", "c"]
    assert read.unfit[0].reason == "orders/1.parquet line 2: has no version: seq is not UTF-8"


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_bytes_that_debezium_left_out_are_absent_in_every_type_of_bytes(tmp_path: Path, kind: pa.DataType) -> None:
    octets = pa.array([b"a", PLACEHOLDER.encode()], kind)
    columns = {"id": pa.array([1, 2]), "Op": pa.array(["U"] * 2), "name": octets}
    folder = folder_with(tmp_path, columns)
    (table,) = folder.tables
    read = replace(folder, tables=({**table, "columns": {"id": "bigint", "name": "bytea"}},)).read()
    assert ([row["name"] for _, row in read.changes], read.unfit) == ([b"a", None], [])


def test_what_duckdb_writes_is_its_text_and_its_document(tmp_path: Path) -> None:
    table = {"name": "shop.public.orders", "id": ["id"], "columns": {"id": "uuid", "name": "jsonb", "list": "uuid[]"}}
    columns = {"Op": pa.array(["U", "D"] * (ROWS // 2)), "id": UUIDS, "BI_id": UUIDS, "name": DOCUMENTS, "list": LISTS}
    read = replace(folder_with(tmp_path, columns), tables=(table,)).read()
    shown = str(A_UUID)
    assert read.changes[:2] == [
        ("u", {"id": shown, "name": '{"a":1}', "list": [shown]}),
        ("d", {"id": shown, "name": None, "list": None}),
    ]
    assert (len(read.changes), read.unfit) == (ROWS, [])


@pytest.mark.parametrize("operation", ["I", "U"])
@pytest.mark.parametrize("name", ["name", "document", "more"])
def test_a_row_whose_text_is_not_utf8_is_quarantined_and_one_whose_column_is_not_listed_is_applied(
    tmp_path: Path, operation: str, name: str
) -> None:
    types = {"id": "bigint", "name": "text", "document": "jsonb"}
    texts = unchecked([b"a", b"caf\xe9", b"c"], pa.string(), pa.binary())
    odd = pa.StructArray.from_arrays([texts], ["a"]) if name == "document" else texts
    columns = {"id": pa.array([1, 2, 3]), "Op": pa.array([operation, operation, "X"]), name: odd}
    table = {"name": "shop.public.orders", "id": ["id"], "columns": types}
    read = replace(folder_with(tmp_path, columns), tables=(table,)).read()
    assert [row["id"] for _, row in read.changes] == ([1, 2] if name == "more" else [1])
    reasons = [each.reason.partition(": ")[2] for each in read.unfit]
    odd_reason = [] if name == "more" else [f"the value of {name} does not fit the lake's {types[name]}"]
    assert reasons == [*odd_reason, "has the unknown operation 'X' in Op"]
    assert name == "more" or "caf\\udce9" in (read.unfit[0].payload[LINE] or "")


def test_a_nested_day_that_python_cannot_hold_is_its_text(tmp_path: Path) -> None:
    table = {"name": "shop.public.orders", "id": ["id"], "columns": {"id": "bigint", "name": "jsonb"}}
    columns = {"Op": pa.array(["I"] * 2), "id": pa.array([1, 2])}
    columns["name"] = pa.array([{"a": [{"b": FAR_DAY}], "c": 1}, {"a": [{"b": 0}], "c": 2}], OF_DAYS)
    read = replace(folder_with(tmp_path, columns), tables=(table,)).read()
    assert [row["name"] for _, row in read.changes] == [
        '{"a":[{"b":"23873-04-04"}],"c":1}',
        '{"a":[{"b":"1970-01-01"}],"c":2}',
    ]


def values_of(path: Path, column: pa.Array, *types: str, int96: bool = False) -> list[list[Any]]:
    """By type, the values of the column; without those that are quarantined."""
    found = []
    for number, type_ in enumerate(types):
        table = {"name": "shop.public.orders", "id": ["id"], "columns": {"id": "bigint", "v": type_}}
        columns = {"Op": pa.array(["I"] * len(column)), "id": pa.array(range(len(column))), "v": column}
        folder = replace(folder_with(path / str(number), columns, int96=int96), tables=(table,))
        read = folder.read()
        assert len(read.changes) + len(read.unfit) == len(column)
        found.append([row["v"] for _, row in read.changes])
    return found


@pytest.mark.parametrize(("unit", "second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_a_duration_is_a_number_of_microseconds_and_never_an_interval(tmp_path: Path, unit: str, second: int) -> None:
    column = pa.array([90 * second, None, -second], pa.duration(unit))
    assert values_of(tmp_path, column, "int8", "text", "interval") == [
        [90_000_000, None, -1_000_000],
        ["90000000", None, "-1000000"],
        [None],
    ]


def test_a_duration_that_microseconds_cannot_hold_is_quarantined_alone(tmp_path: Path) -> None:
    finer, longer = pa.array([1_000, 1_001], pa.duration("ns")), pa.array([1, 2**62], pa.duration("s"))
    assert values_of(tmp_path / "finer", finer, "int8") == [[1]]
    assert values_of(tmp_path / "longer", longer, "int8") == [[1_000_000]]
    columns = {"id": pa.array([1, 2]), "Op": pa.array(["I"] * 2), "at": pa.array([b"2026-01-01T00:00:00Z"] * 2)}
    (unfit,) = folder_with(tmp_path, columns | {"name": finer}).read().unfit
    assert unfit.reason == "orders/1.parquet line 2: has a duration in name that microseconds cannot hold"
    assert json.loads(unfit.payload[LINE] or "")[UNREAD] == {
        "id": 2,
        "Op": "I",
        "at": "2026-01-01T00:00:00Z",
        "name": "1001",
    }


@pytest.mark.parametrize(
    ("old", "new", "rest"),
    [
        (pa.array([1, 2], pa.duration("ms")), pa.array([1, 3], pa.duration("ms")), {}),
        (pa.array([b"1000", b"2000"]), pa.array([b"1000", b"3000"]), {}),
        (pa.array([b"AAE=", b"AAI="]), pa.array([b"1000", b"3000"]), {"BI_id": "bytea"}),
    ],
    ids=["durations", "bytes of texts", "a column of the table"],
)
def test_a_column_of_the_old_row_is_read_as_that_of_the_row(
    tmp_path: Path, old: pa.Array, new: pa.Array, rest: dict[str, str]
) -> None:
    folder = folder_with(tmp_path, {"Op": pa.array(["U", "U"]), "id": new, "BI_id": old})
    (table,) = folder.tables
    read = replace(folder, tables=({**table, "columns": {"id": "int8", **rest}},)).read()
    moved = [("u", 1000), ("u", 3000)] if rest else [("u", 1000), ("d", 2000), ("m", 3000)]
    assert (sorted((row["id"], operation) for operation, row in read.changes), read.unfit) == (
        sorted((id_, operation) for operation, id_ in moved),
        [],
    )
    assert [row["BI_id"] for _, row in read.changes if rest] == (old.to_pylist() if rest else [])


@pytest.mark.parametrize("kind", [pa.decimal128(20, 10), pa.decimal256(60, 10)])
def test_a_small_decimal_is_written_without_an_exponent(tmp_path: Path, kind: pa.DataType) -> None:
    column = pa.array([Decimal(0), Decimal("1e-10"), None, Decimal("12.5")], kind)
    texts = ["0.0000000000", "0.0000000001", None, "12.5000000000"]
    assert values_of(tmp_path, column, "text", "numeric") == [texts, texts]


def test_a_map_of_texts_is_an_object_and_another_map_its_pairs(tmp_path: Path) -> None:
    of_texts, of_numbers = pa.map_(pa.string(), pa.string()), pa.map_(pa.int32(), pa.int32())
    column = pa.array([[("b", "1"), ("a", None)], None, []], of_texts)
    assert values_of(tmp_path / "texts", column, "jsonb", "hstore") == [
        ['{"b":"1","a":null}', None, "{}"],
        ['"a"=>NULL, "b"=>"1"', None, ""],
    ]
    in_list = pa.list_(pa.struct([("m", of_texts)]))
    nested = pa.array([[{"m": [("a", "1")]}], [{"m": [("a", "1"), ("a", "2")]}]], in_list)
    assert values_of(tmp_path / "nested", nested, "jsonb") == [
        ['[{"m":{"a":"1"}}]', '[{"m":[["a","1"],["a","2"]]}]'],
    ]
    assert values_of(tmp_path / "numbers", pa.array([[(1, 2)]], of_numbers), "jsonb") == [["[[1,2]]"]]


def test_a_time_that_spark_wrote_as_int96_is_exact_in_every_year_and_cut_to_microseconds(tmp_path: Path) -> None:
    """As nanoseconds such times hold the years 1677 to 2262 alone."""
    moments = [*map(datetime.fromisoformat, ("9999-12-31", "0001-01-01", "1960-01-01T00:00:00.000001")), None]
    whole = pa.array(moments, pa.timestamp("us"))
    finer = pa.array([1_001, -1], pa.timestamp("ns"))
    assert values_of(tmp_path / "whole", whole, "timestamp", int96=True) == [moments]
    assert values_of(tmp_path / "finer", finer, "timestamp", int96=True) == [
        [*map(datetime.fromisoformat, ("1970-01-01T00:00:00.000001", "1969-12-31T23:59:59.999999"))]
    ]
