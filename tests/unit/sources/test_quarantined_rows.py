"""Rows of files that cannot be applied: where they are quarantined, why, and their values after a correction."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.sources.event_texts import snapshot_row_payload
from cdc_pipeline.sources.files.exported_rows import ExportForm, exported_rows
from cdc_pipeline.sources.files.record_blocks import LineBlock, RecordBlock
from cdc_pipeline.sources.quarantined import decode_texts
from tests.support.change_files import ORDERS, ChangeFolder, json_lines
from tests.unit.sources.test_quarantined import NOW, kept

BY_N = {"format": "upserts", "operation_column": "op", "order_by": ["m", "n"]}
WHOLE = {"op": "I", "m": 0, "n": 0, "id": 0, "name": "Ada"}
OTHER = {**ORDERS, "name": "shop.public.other"}


@pytest.mark.parametrize("wrong", [{"op": "X"}, {"op": None}, {"n": None}, {"n": True}, {"id": None}])
def test_a_row_is_quarantined_at_the_table_of_its_folder(tmp_path: Path, wrong: dict[str, Any]) -> None:
    folder = ChangeFolder(folder=tmp_path, source=BY_N, tables=(OTHER, ORDERS))
    folder.write("orders/1.jsonl", json_lines([WHOLE, {**WHOLE, **wrong}]))
    read = folder.read()
    assert (len(read.changes), [str(table) for table in read.unfit_at]) == (1, ["shop.public.orders"])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (True, "is neither a number nor a text"),
        ([1], "is neither a number nor a text"),
        ({"a": 1}, "is neither a number nor a text"),
        ("[true]", "is neither a number nor a text"),
        ("x" * 1_001, "has 1001 characters, more than 1000"),
    ],
    ids=["boolean", "list", "struct", "list in a text", "long text"],
)
@pytest.mark.parametrize("column", ["n", "n.file"])
def test_the_reason_names_the_column_of_order_by_that_cannot_order(
    tmp_path: Path, column: str, value: object, why: str
) -> None:
    folder = ChangeFolder(folder=tmp_path, source={**BY_N, "order_by": ["m", column]})
    folder.write("orders/1.jsonl", json_lines([{**WHOLE, column: 1}, {**WHOLE, column: value}]))
    read = folder.read()
    assert len(read.changes) == 1
    assert [unfit.reason for unfit in read.unfit] == [f"orders/1.jsonl line 2: has no version: {column} {why}"]


@pytest.mark.parametrize("kept", [["id"], ["name"], []])
@pytest.mark.parametrize("operation", ["D", "I"])
def test_the_reason_names_the_first_column_of_the_id_that_is_missing(
    tmp_path: Path, operation: str, kept: list[str]
) -> None:
    folder = ChangeFolder(folder=tmp_path, source=BY_N, tables=({**ORDERS, "id": ["id", "name"]},))
    row = {"op": operation, "m": 0, "n": 1, **{name: WHOLE[name] for name in kept}}
    folder.write("orders/1.jsonl", json_lines([WHOLE, row]))
    read = folder.read()
    missing = "name" if kept == ["id"] else "id"
    assert [unfit.reason for unfit in read.unfit] == [f"orders/1.jsonl line 2: the id column {missing} is NULL"]


PLAIN: list[tuple[str, object]] = [
    ("jsonb", {"price": 1.5, "n": "ä", "nul": "\0", "more": [True, None]}),
    ("json", '{"a": 1}'),
    ("bit(8)", "oA=="),
    ("uuid", "6E9F3D4C-0A4B-4B5E-9C1A-1234567890AB"),
    ("interval", "P1Y2M3DT4H5M6.78S"),
    ("hstore", {"b": None, "a": 'q"\\'}),
    ("numeric", 1e25),
    ("numeric(12,2)", "1.5"),
    ("bytea", "AAH/"),
    ("bytea", ""),
    ("boolean", "true"),
    ("boolean", False),
    ("int4[]", [1, None, -2]),
    ("text[]", ["", "NULL", 'a "b" \\c', None, "{,}", "ä\n"]),
    ("text[]", []),
    ("numeric(6,2)[]", ["1.50"]),
    ("bytea[]", ["AAH/"]),
    ("boolean[]", [True, False]),
    ("box[]", ["(1,1),(0,0)", "(2,2),(1,1)"]),
    ("timestamp", "2026-01-02T10:00:00.250000Z"),
    ("timestamptz", "2026-01-02T10:00:00+02:00"),
    ("timestamptz[]", ["0044-01-02T10:00:00.5Z"]),
    ("date", "0044-03-15"),
    ("date", 20_000),
    ("time", "10:00:00.500"),
    ("float8", 1e300),
    ("float8", "Infinity"),
    ("float4", 0.1),
    ("text", "\\x41\0é"),
    ("int8", None),
]
OTHERS: list[tuple[ExportForm, str, object]] = [
    (ExportForm.BY_COPY, "bit(3)", "101"),
    (ExportForm.BY_COPY, "int4[]", "{1,NULL}"),
    (ExportForm.OF_MYSQL, "time", "-838:59:59.500"),
    (ExportForm.OF_MYSQL, "bit(9)", "AQE="),
    (ExportForm.BY_DMS, "bytea", "0xAB"),
]


def exported(form: ExportForm, kind: str, *rows: dict[str, object]) -> tuple[TableSchema, Any]:
    columns = {"id": "int4", "value": kind}
    schema = TableSchema(columns=tuple(Column(name=name, type=type_) for name, type_ in columns.items()), key=("id",))
    block: RecordBlock = LineBlock(lines=[json.dumps(row).encode() for row in rows])
    return schema, exported_rows(block, schema, "row", 1, form).copied


@pytest.mark.parametrize(("form", "kind", "value"), [*((ExportForm.PLAIN, *each) for each in PLAIN), *OTHERS])
def test_a_row_of_an_export_has_the_same_values_after_a_correction_of_its_other_column(
    form: ExportForm, kind: str, value: object
) -> None:
    schema, copied = exported(form, kind, {"id": "one", "value": value}, {"id": 1, "value": value})
    (unfit,) = copied.unfit_rows
    corrected = {**snapshot_row_payload(unfit.texts, NOW), "id": "1"}
    (decoded,) = decode_texts([replace(kept(1), payload=corrected)], schema, schema.columns)
    assert decoded.refused == {}
    assert decoded.rows.select(["id", "value"]).to_pylist() == copied.rows.slice(1).to_pylist()


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("int4", "many", "many"),
        ("int4", True, "t"),
        ("int4", 1e25, "1E+25"),
        ("int4", {"price": 1.5, "n": "ä"}, '{"price":1.5,"n":"ä"}'),
        ("numeric(4,2)", "123456.5", "123456.5"),
        ("text", "caf\udce9", "caf\udce9"),
    ],
)
def test_a_value_that_does_not_fit_is_quarantined_as_the_export_has_it(kind: str, value: object, shown: str) -> None:
    _, copied = exported(ExportForm.PLAIN, kind, {"id": 1, "value": value})
    (unfit,) = copied.unfit_rows
    payload = snapshot_row_payload(unfit.texts, NOW)
    assert (payload["id"], payload["value"]) == ("1", shown)


def test_text_that_has_no_utf8_is_refused_again_until_it_is_corrected() -> None:
    schema, copied = exported(ExportForm.PLAIN, "text", {"id": 1, "value": "\ud800"})
    payload = snapshot_row_payload(copied.unfit_rows[0].texts, NOW)
    (decoded,) = decode_texts([replace(kept(1), payload=payload)], schema, schema.columns)
    assert decoded.refused == {1: "the value of value does not fit the lake's text"}
