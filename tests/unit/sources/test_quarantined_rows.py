"""Rows of change files that cannot be applied: the table that they are quarantined at, and the reason."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.change_files import ORDERS, ChangeFolder, json_lines

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
