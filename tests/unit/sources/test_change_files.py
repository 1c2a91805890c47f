"""Change files of each format and kind of file: what their rows become, where reading goes on, what stops a folder."""

import gzip
import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc_pipeline.errors import SettingsError, SourceGap
from cdc_pipeline.sources.debezium.rows import LINE
from tests.support.change_files import (
    ORDERS,
    ChangeFolder,
    all_begun,
    avro_bytes,
    csv_text,
    json_lines,
    parquet_bytes,
)
from tests.support.doc_pages import blocks, documented, text_of

DMS = {"format": "dms", "time_column": "ts"}
FIRST, SECOND = "public/orders/20260101-100000000", "public/orders/20260101-100001000"
ROWS = [
    {"Op": "I", "ts": "2026-01-01 10:00:00.000001", "id": 1, "name": "Ada", "amount": "9.50"},
    {"Op": "I", "ts": "2026-01-01 10:00:00.000001", "id": 2, "name": None, "amount": "1.00"},
    {"Op": "U", "ts": "2026-01-01 10:00:01.000000", "id": 1, "name": "Eve", "amount": "9.50"},
    {"Op": "D", "ts": "2026-01-01 10:00:02.000000", "id": 2, "name": None, "amount": None},
]
CHANGES = [
    ("i", {"id": 1, "name": "Ada", "amount": Decimal("9.50")}),
    ("i", {"id": 2, "name": None, "amount": Decimal("1.00")}),
    ("u", {"id": 1, "name": "Eve", "amount": Decimal("9.50")}),
    ("d", {"id": 2, "name": None, "amount": None}),
]
Write = Callable[[Sequence[Mapping[str, Any]]], bytes]
KINDS: dict[str, Write] = {
    ".csv": csv_text,
    ".csv.gz": lambda rows: gzip.compress(csv_text(rows)),
    ".parquet": parquet_bytes,
    ".jsonl": json_lines,
}


@pytest.mark.parametrize("suffix", KINDS)
def test_rows_become_the_same_changes_in_every_kind_of_file(tmp_path: Path, suffix: str) -> None:
    folder = ChangeFolder(folder=tmp_path, source=DMS)
    folder.write(FIRST + suffix, KINDS[suffix](ROWS[:2]))
    folder.write(SECOND + suffix, KINDS[suffix](ROWS[2:]))
    folder.write("public/orders/LOAD00000001" + suffix, KINDS[suffix](ROWS[:1]))
    read = folder.read()
    assert (read.changes, read.unfit) == (CHANGES, [])
    assert read.versions == sorted(set(read.versions))


@pytest.mark.parametrize("suffix", KINDS)
def test_a_reader_goes_on_after_every_row_as_if_it_had_never_stopped(tmp_path: Path, suffix: str) -> None:
    folder = ChangeFolder(folder=tmp_path, source=DMS)
    folder.write(FIRST + suffix, KINDS[suffix](ROWS[:2]))
    folder.write(SECOND + suffix, KINDS[suffix](ROWS[2:]))
    whole = folder.read()
    for number, (end, place) in enumerate(list(whole.places.items())[: len(ROWS)], start=1):
        again = ChangeFolder(folder=tmp_path, source=DMS, begun=all_begun(whole.places, end))
        rest = again.read(place, end)
        assert (rest.changes, rest.versions) == (whole.changes[number:], whole.versions[number:])


def test_a_file_that_was_read_whole_may_go_and_one_that_was_read_in_part_may_not_change(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source=DMS)
    path = folder.write(FIRST + ".csv", csv_text(ROWS))
    whole = folder.read()
    _, half, *_, last = whole.places.items()
    path.write_bytes(csv_text([ROWS[1], *ROWS[1:]]))
    with pytest.raises(SourceGap, match="other records than the 2 that were read"):
        ChangeFolder(folder=tmp_path, source=DMS, begun=all_begun(whole.places, half[0])).read(half[1], half[0])
    path.unlink()
    with pytest.raises(SourceGap, match="is gone"):
        ChangeFolder(folder=tmp_path, source=DMS, begun=all_begun(whole.places, half[0])).read(half[1], half[0])
    folder.write(SECOND + ".csv", csv_text(ROWS[:1]))
    assert len(folder.read(last[1], last[0]).changes) == 1


POISON = {
    "more or fewer fields than the file has columns": "I,2026-01-01 10:00:00,2",
    "an operation that the format does not have": "X,2026-01-01 10:00:00,3,Max,1.00",
    "a time that cannot be read": "I,yesterday,4,Max,1.00",
    "an id that is empty": "I,2026-01-01 10:00:00,,Max,1.00",
    "a value that its type cannot hold": "I,2026-01-01 10:00:00,6,Max,much",
    "line ends inside quotes": 'I,2026-01-01 10:00:00,7,"two\nlines",1.00',
}
WITHOUT_BEFORE = {
    "an update of a keyless table whose before image is NULL in every column",
    "a delete whose before image is NULL in every column",
}
HALF_ID = "an update whose before image has a part of another id"
BEYOND_AVRO = "a value of Avro beyond its type, such as a date after the year 9999"
NOT_UTF8 = "a text that is not UTF-8"


def test_poison_rows_give_what_the_page_says_and_the_others_are_applied(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source=DMS)
    page = documented("A row of a change file")
    assert page.pop("a file that is damaged, or whose format shows that its end is missing") == ["cannot be read"]
    assert page.pop("a CSV file whose first row lies where the names of its columns belong") == ["has no column"]
    assert page.pop(BEYOND_AVRO) == ["has a value that cannot be read"]
    assert page.pop(HALF_ID) == ["came without the whole old id"]
    assert page.pop(NOT_UTF8) == ["does not fit the lake's"]
    assert page.keys() - POISON.keys() == WITHOUT_BEFORE
    lines = ["Op,ts,id,name,amount", *POISON.values(), "I,2026-01-01 10:00:00,1,Ada,9.50"]
    folder.write(FIRST + ".csv", "\n".join(lines) + "\n")
    read = folder.read()
    assert [row["id"] for _, row in read.changes] == [7, 1]
    reasons = {int(unfit.reason.split(": ")[0].rpartition(" ")[2]): unfit.reason for unfit in read.unfit}
    for number, name in enumerate(POISON, start=1):
        words = page[name]
        reason = reasons.pop(number, "")
        assert reason.startswith(f"{FIRST}.csv line {number}: ") or not words, name
        assert [word for word in words if word not in reason] == [], name
    assert reasons == {}
    assert "3" in {json.loads(unfit.payload[LINE] or "").get("id") for unfit in read.unfit}


AVRO_SCHEMA = {"type": "record", "name": "row", "fields": [{"name": "id", "type": "string"}]}
AVRO, XZ = (avro_bytes([{"id": "x" * 100}], AVRO_SCHEMA, codec) for codec in ("null", "xz"))
DAMAGED_AVRO = [
    (".avro", content)
    for content in (
        b"Obj\x01x",
        AVRO.replace(b'"type": "string"', b'"tyqe": "string"'),
        XZ[:-40] + bytes(8) + XZ[-32:],
        AVRO.replace(b"\xc8\x01xxx", b"\xfe" * 8 + b"\x7fxxx"),
    )
]


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".parquet", parquet_bytes(ROWS)[:-9]),
        (".csv.gz", gzip.compress(csv_text(ROWS))[:-9]),
        (".csv.gz", b""),
        *DAMAGED_AVRO,
    ],
    ids=[
        "parquet",
        "gzip",
        "gzip of 0 bytes",
        "avro",
        "avro of another schema",
        "avro that is compressed",
        "avro of great length",
    ],
)
def test_a_damaged_file_stops_its_table_until_it_is_replaced_and_the_others_go_on(
    tmp_path: Path, suffix: str, content: bytes
) -> None:
    tables = (ORDERS, {**ORDERS, "name": "shop.public.other"})
    folder = ChangeFolder(folder=tmp_path, source=DMS, tables=tables)
    folder.write(FIRST + suffix, content)
    folder.write(SECOND + ".csv", csv_text(ROWS[:1]))
    folder.write("public/other/20260101-100000000.csv", csv_text(ROWS[:2]))
    read = folder.read()
    assert len(read.changes) == 2
    assert read.error is not None
    assert f"the file {FIRST}{suffix} cannot be read" in str(read.error)
    (folder.folder / "files" / (FIRST + suffix)).unlink()
    (end, place) = list(read.places.items())[-1]
    read = folder.read(place, end)
    assert (len(read.changes), read.error) == (1, None)


def test_a_file_that_comes_late_is_refused_in_order_and_read_where_columns_are_the_order(tmp_path: Path) -> None:
    ordered = ChangeFolder(folder=tmp_path / "a", source=DMS)
    free = ChangeFolder(folder=tmp_path / "b", source={**DMS, "order_by": ["ts"]})
    for folder in (ordered, free):
        folder.write(SECOND + ".csv", csv_text(ROWS[2:3]))
        first = folder.read()
        folder.write(FIRST + ".csv", csv_text(ROWS[:1]))
        (end, place) = list(first.places.items())[-1]
        late = folder.read(place, end)
        if folder is ordered:
            assert late.changes == []
            assert "came after" in str(late.error)
            assert "give it a later name; only a new pipeline can have order_by" in str(late.error)
        else:
            assert late.changes == CHANGES[:1]
            assert late.versions < first.versions


def test_a_file_is_not_read_before_it_is_complete(tmp_path: Path) -> None:
    marked = ChangeFolder(folder=tmp_path / "a", source={**DMS, "complete": "marked"})
    marked.write(FIRST + ".csv", csv_text(ROWS[:1]))
    marked.write(SECOND + ".csv", csv_text(ROWS[1:]))
    marked.write(SECOND + ".csv.done", "")
    assert marked.read().changes == []
    marked.write(FIRST + ".csv.done", "")
    assert marked.read().changes == CHANGES
    named = ChangeFolder(folder=tmp_path / "b", source=DMS)
    named.write(FIRST + ".csv.tmp", csv_text(ROWS[:1])[:10])
    named.write("public/orders/.hidden.csv", csv_text(ROWS[:1])[:10])
    assert named.read().changes == []


def test_a_file_without_a_header_has_operation_time_and_the_tables_columns(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source={**DMS, "csv": {"header": False, "null": "NULL"}})
    folder.write(FIRST + ".csv", 'I,2026-01-01 10:00:00,1,NULL,9.50\nI,2026-01-01 10:00:00,2,"NULL",\n')
    read = folder.read()
    assert read.changes == [("i", {"id": 1, "name": None, "amount": Decimal("9.50")})]
    assert [unfit.reason for unfit in read.unfit] == [
        f"{FIRST}.csv line 2: the value of amount does not fit the lake's numeric(12,2)"
    ]


def test_a_key_change_moves_the_row_if_the_old_id_is_there(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source={"format": "dms"})
    folder.write(FIRST + ".csv", "Op,BI_id,id,name,amount\nU,1,5,Ada,1.00\n")
    assert [(kind, row["id"]) for kind, row in folder.read().changes] == [("d", 1), ("m", 5)]


def test_rows_of_a_keyless_table_need_the_whole_old_row(tmp_path: Path) -> None:
    table = {"name": "shop.public.orders", "columns": {"name": "text", "amount": "int"}}
    folder = ChangeFolder(folder=tmp_path, source={"format": "dms"}, tables=(table,))
    lines = ["Op,BI_name,BI_amount,name,amount", "I,,,a,1", "U,a,1,b,2", "D,,,b,2", "U,,,c,3"]
    folder.write(FIRST + ".csv", "\n".join(lines) + "\n")
    folder.write(SECOND + ".csv", "Op,name,amount\nU,b,2\n")
    read = folder.read()
    a, b = {"name": "a", "amount": 1}, {"name": "b", "amount": 2}
    assert read.changes == [("i", a), ("d", a), ("i", b), ("d", b)]
    page = documented("A row of a change file")
    assert [word for name in WITHOUT_BEFORE for word in page[name]] == ["came without the whole old row"]
    assert ["came without the whole old row" in unfit.reason for unfit in read.unfit] == [True, True]


def test_upserts_name_their_operation_column_and_values(tmp_path: Path) -> None:
    source = {
        "format": "upserts",
        "operation_column": "gone",
        "operations": {"true": "delete", "false": "insert"},
        "order_by": ["seq"],
    }
    folder = ChangeFolder(folder=tmp_path, source=source)
    rows = [
        {"id": 1, "name": "new", "amount": 1.5, "gone": False, "seq": 10},
        {"id": 1, "name": "old", "amount": 1.5, "gone": False, "seq": 9},
        {"id": 2, "name": "gone", "amount": 1.5, "gone": True, "seq": 1},
        {"id": 3, "name": "no order", "amount": 1.5, "gone": False, "seq": None},
    ]
    folder.write("orders/a.jsonl", json_lines(rows))
    read = folder.read()
    assert [(kind, row["name"]) for kind, row in read.changes] == [("i", "new"), ("i", "old"), ("d", None)]
    assert read.versions[0] > read.versions[1]
    assert "has no version: seq, which order_by names, is missing" in read.unfit[0].reason


def test_a_new_column_of_the_files_is_left_out_until_it_is_declared(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source=DMS)
    folder.write(FIRST + ".csv", csv_text(ROWS[:1]))
    folder.write(SECOND + ".csv", csv_text([{**ROWS[2], "note": "new"}]))
    assert [set(row) for _, row in folder.read().changes] == [{"id", "name", "amount"}] * 2
    wider = {**ORDERS, "columns": {**ORDERS["columns"], "note": "text"}}
    changes = ChangeFolder(folder=tmp_path, source=DMS, tables=(wider,)).read().changes
    assert [row["note"] for _, row in changes] == [None, "new"]


def test_two_tables_in_one_folder_are_refused(tmp_path: Path) -> None:
    tables = (ORDERS, {**ORDERS, "name": "shop.sales.orders"})
    with pytest.raises(SettingsError, match="another table have the folder 'orders'"):
        ChangeFolder(folder=tmp_path, source={"format": "upserts"}, tables=tables).opened()


def test_debezium_files_lie_in_one_folder_and_name_their_tables(tmp_path: Path) -> None:
    tables = (ORDERS, {**ORDERS, "name": "shop.public.other"})
    folder = ChangeFolder(folder=tmp_path, source={"format": "debezium"}, tables=tables)
    events = [
        {"op": "c", "after": {"id": 1}, "source": {"db": "shop", "schema": "public", "table": table, "lsn": lsn}}
        for lsn, table in ((10, "orders"), (20, "other"), (30, "third"))
    ]
    folder.write("2026/01/a.jsonl", json_lines(events))
    assert len(folder.read().changes) == 2


def test_the_examples_of_the_page_are_read(tmp_path: Path) -> None:
    page = "docs/how-to/change-files.md"
    files = re.findall(r"This is .*?`files/(.*?)`:\n\n```\w+\n(.*?)```", text_of(page), re.DOTALL)
    documents = [yaml.safe_load(block) for block in blocks(page, "yaml")]
    changes = []
    for number, (document, (name, content)) in enumerate(zip(documents, files, strict=True)):
        folder = ChangeFolder(folder=tmp_path / str(number), source=document["source"], tables=document["tables"])
        folder.write(name, content)
        read = folder.read()
        assert read.unfit == []
        changes.append([(kind, row["customer"]) for kind, row in read.changes])
    assert changes == [[("i", "Ada"), ("u", "Eve"), ("d", None)], [("i", "Ada")], [("i", "Ada"), ("d", None)]]
