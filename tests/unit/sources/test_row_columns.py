"""Columns of change files: which belong to the row, which to the row before, and which only say what a row does."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.change_files import ChangeFolder, NothingKnown, csv_text, json_lines, parquet_bytes

FEW, MANY = 1, 20
"""Records of JSON are decoded column by column if many are alike, else one by one."""
Write = Callable[[Sequence[Mapping[str, Any]]], bytes]
KINDS: list[tuple[str, Write, int]] = [
    ("1.csv", csv_text, FEW),
    ("1.parquet", parquet_bytes, FEW),
    ("1.jsonl", json_lines, FEW),
    ("1.jsonl", json_lines, MANY),
]
every_kind = pytest.mark.parametrize(("name", "write", "count"), KINDS)
UPSERTS = {"format": "upserts", "operation_column": "op"}


def orders(folder: Path, columns: Mapping[str, str], *, key: Sequence[str] = ("id",), **source: Any) -> ChangeFolder:
    table = {"name": "shop.public.orders", "id": key, "columns": columns}
    return ChangeFolder(folder=folder, source={**UPSERTS, **source}, tables=[table])


@every_kind
def test_a_declared_column_is_no_old_value_though_its_name_begins_like_one(
    name: str, write: Write, count: int, tmp_path: Path
) -> None:
    folder = orders(tmp_path, {"id": "int", "score": "int", "BI_score": "int"})
    rows = [{"op": "update", "id": number, "score": 5, "BI_score": 7} for number in range(count)]
    folder.write(f"orders/{name}", write(rows))
    read = folder.read()
    assert read.changes == [("u", {"id": number, "score": 5, "BI_score": 7}) for number in range(count)]
    assert read.unfit == []


@every_kind
def test_a_declared_column_that_is_named_like_an_old_id_moves_and_deletes_no_row(
    name: str, write: Write, count: int, tmp_path: Path
) -> None:
    folder = orders(tmp_path, {"id": "int", "BI_id": "int", "v": "text"})
    rows = [{"op": "update", "id": number, "BI_id": 7, "v": "new"} for number in range(count)]
    folder.write(f"orders/{name}", write(rows))
    assert folder.read().changes == [("u", {"id": number, "BI_id": 7, "v": "new"}) for number in range(count)]


@every_kind
def test_an_old_value_of_a_column_that_is_not_declared_changes_nothing(
    name: str, write: Write, count: int, tmp_path: Path
) -> None:
    folder = orders(tmp_path, {"id": "int", "v": "text"})
    row = {"op": "update", "id": 1, "v": "new", "BI_id": 1, "BI_v": "old", "x": 1, "BI_x": 2}
    folder.write(f"orders/{name}", write([row] * count))
    assert folder.read().changes == [("u", {"id": 1, "v": "new"})] * count


@every_kind
def test_an_old_row_of_a_keyless_table_is_whole_if_it_has_the_declared_columns(
    name: str, write: Write, count: int, tmp_path: Path
) -> None:
    """What the file has beyond them, such as a number by which its rows are ordered, belongs to no row."""
    folder = orders(tmp_path, {"id": "int", "v": "text"}, key=(), order_by=["seq"])
    row = {"op": "update", "id": 1, "v": "new", "BI_id": 1, "BI_v": "old", "seq": 3, "note": "x"}
    folder.write(f"orders/{name}", write([row] * count))
    read = folder.read()
    assert (read.changes, read.unfit) == ([("d", {"id": 1, "v": "old"}), ("i", {"id": 1, "v": "new"})] * count, [])


def test_an_old_row_of_a_keyless_table_without_a_declared_column_is_quarantined(tmp_path: Path) -> None:
    folder = orders(tmp_path, {"id": "int", "v": "text"}, key=())
    folder.write("orders/1.jsonl", json_lines([{"op": "update", "id": 1, "v": "new", "BI_id": 1, "note": "x"}]))
    read = folder.read()
    assert (read.changes, len(read.unfit)) == ([], 1)
    assert "came without the whole old row" in read.unfit[0].reason


@every_kind
@pytest.mark.parametrize("key", [("id",), ()], ids=["keyed", "keyless"])
def test_a_delete_whose_before_image_is_null_in_every_column_deletes_its_own_row(
    name: str, write: Write, count: int, tmp_path: Path, key: Sequence[str]
) -> None:
    folder = orders(tmp_path, {"id": "int", "v": "text"}, key=key)
    row = {"op": "delete", "id": 1, "v": "a", "BI_id": None, "BI_v": None}
    folder.write(f"orders/{name}", write([row] * count))
    read = folder.read()
    assert (read.changes, read.unfit) == ([("d", {"id": 1, "v": None if key else "a"})] * count, [])


@every_kind
def test_a_delete_deletes_the_row_of_a_before_image_that_has_values(
    name: str, write: Write, count: int, tmp_path: Path
) -> None:
    """NULL beside them is the old value."""
    folder = orders(tmp_path, {"id": "int", "v": "text"}, key=())
    row = {"op": "delete", "id": 1, "v": "a", "BI_id": 2, "BI_v": None}
    folder.write(f"orders/{name}", write([row] * count))
    assert folder.read().changes == [("d", {"id": 2, "v": None})] * count


@every_kind
def test_an_update_of_a_keyless_table_whose_before_image_is_null_in_every_column_is_quarantined(
    name: str, write: Write, count: int, tmp_path: Path
) -> None:
    folder = orders(tmp_path, {"id": "int", "v": "text"}, key=())
    row = {"op": "update", "id": 1, "v": "new", "BI_id": None, "BI_v": None}
    folder.write(f"orders/{name}", write([row] * count))
    read = folder.read()
    assert (read.changes, len(read.unfit)) == ([], count)
    assert "came without the whole old row" in read.unfit[0].reason


@every_kind
def test_a_delete_of_a_keyless_table_that_lacks_a_column_is_of_a_row_that_has_null_there(
    name: str, write: Write, count: int, tmp_path: Path
) -> None:
    """Rows of files from before the column have NULL there, so such a delete cannot be refused."""
    folder = orders(tmp_path, {"id": "int", "v": "text"}, key=())
    folder.write(f"orders/{name}", write([{"op": "delete", "id": 1}] * count))
    assert folder.read().changes == [("d", {"id": 1, "v": None})] * count


@every_kind
def test_columns_that_settings_name_are_read_and_others_are_said_to_be_left_out(
    name: str, write: Write, count: int, tmp_path: Path
) -> None:
    folder = orders(tmp_path, {"id": "int"}, order_by=["seq"], time_column="ts")
    row = {"op": "insert", "ts": "2026-01-01T00:00:00Z", "seq": 1, "id": 1, "note": "x"}
    folder.write(f"orders/{name}", write([row] * count))
    with capture_logs() as logs:
        folder.read()
    assert [(log["event"], log["column"]) for log in logs if "column" in log] == [
        ("column not read: pipeline.yml does not list it", "note")
    ]


@every_kind
def test_equal_rows_of_a_keyless_table_at_one_place_of_the_order_stay_apart(
    name: str, write: Write, count: int, tmp_path: Path
) -> None:
    """Each line of each file is read once, so the lake has as many copies however its slices are cut."""
    folder = orders(tmp_path, {"id": "int"}, key=(), order_by=["seq"])
    for file in ("a", "b"):
        folder.write(f"orders/{file}{name}", write([{"op": "insert", "id": 1, "seq": 2}] * count))
    read = folder.read()
    assert len(set(read.versions)) == len(read.versions) == 2 * count
    assert {version.partition("~")[0] for version in read.versions} == {read.versions[0].partition("~")[0]}


@every_kind
def test_equal_rows_with_an_id_are_one_change(name: str, write: Write, count: int, tmp_path: Path) -> None:
    folder = orders(tmp_path, {"id": "int"}, order_by=["seq"])
    folder.write(f"orders/{name}", write([{"op": "insert", "id": 1, "seq": 2}] * count))
    assert len(set(folder.read().versions)) == 1


@pytest.mark.parametrize(
    ("values", "warnings"),
    [
        (["00000B00", "00001000", "00000B01", "00001001"], 1),
        ([1, "2026-01-01"], 1),
        (["2026-01-01T10:00:00", "2026-01-01T10:00:00.5Z", "0/1F"], 0),
        ([1, "2", 1.5, "1e+17", "mysql-bin.000012"], 0),
    ],
)
@pytest.mark.parametrize("count", [FEW, MANY])
def test_numbers_beside_texts_in_the_order_are_warned_of_once(
    values: Sequence[object], warnings: int, count: int, tmp_path: Path
) -> None:
    folder = orders(tmp_path, {"id": "int"}, order_by=["shard", "at"])
    rows = [{"op": "insert", "id": 1, "shard": 1, "at": value} for value in values]
    folder.write("orders/1.jsonl", json_lines(rows * count))
    with capture_logs() as logs:
        assert len(folder.read().changes) == len(rows) * count
    warned = [log["event"] for log in logs if log["log_level"] == "warning"]
    assert warned == ["order_by has numbers and texts"] * warnings


@every_kind
def test_a_uuid_is_one_id_in_every_spelling(name: str, write: Write, count: int, tmp_path: Path) -> None:
    folder = orders(tmp_path, {"id": "uuid"})
    small = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    rows = [{"op": "insert", "id": small}, {"op": "delete", "id": small.upper()}]
    folder.write(f"orders/{name}", write(rows * count))
    assert folder.read().changes == [("i", {"id": small}), ("d", {"id": small})] * count


@pytest.mark.parametrize("type_", ["json", "jsonb"])
def test_an_id_of_json_is_refused_before_a_row_is_read(type_: str, tmp_path: Path) -> None:
    folder = orders(tmp_path, {"id": type_})
    folder.write("orders/1.jsonl", json_lines([{"op": "insert", "id": {"a": 1, "b": 2}}]))
    (refused,) = folder.opened().survey(NothingKnown(offset=None)).refused.values()
    assert f"the column id in the id of shop.public.orders is of the type {type_}" in str(refused)
    assert folder.read().changes == []


@every_kind
def test_rows_with_an_ignored_operation_are_left_out_and_counted(
    name: str, write: Write, count: int, tmp_path: Path
) -> None:
    """Whatever else they have: they need neither an id nor an order."""
    folder = orders(tmp_path, {"id": "int"}, order_by=["seq"], operations={"new": "insert", "note": "ignore"})
    rows: list[dict[str, Any]] = [{"op": "new", "id": 1, "seq": 1}, {"op": "note", "id": None, "seq": None}]
    folder.write(f"orders/{name}", write(rows * count))
    with capture_logs() as logs:
        read = folder.read()
    assert (read.changes, read.unfit) == ([("i", {"id": 1})] * count, [])
    assert [log["counts"] for log in logs if "counts" in log] == [{"row with an ignored operation": count}]


@every_kind
@pytest.mark.parametrize(
    ("old", "new", "key", "in_order"),
    [
        ("ignore", "update", ["id"], [("i", "a"), ("u", "b")]),
        ("delete", "insert", ["id"], [("i", "a"), ("d", None), ("i", "b")]),
        ("delete", "insert", [], [("i", "a"), ("d", "a"), ("i", "b")]),
    ],
    ids=["ids stay", "ids change", "keyless"],
)
def test_rows_of_deltas_change_data_feed_are_in_its_order_whatever_order_files_have(
    name: str, write: Write, count: int, tmp_path: Path, old: str, new: str, key: list[str], in_order: Sequence[Any]
) -> None:
    feed = {"insert": "insert", "update_preimage": old, "update_postimage": new, "delete": "delete"}
    source = {"operation_column": "_change_type", "order_by": ["_commit_version"], "operations": feed}
    folder = orders(tmp_path, {"id": "int", "v": "text"}, key=key, **source)
    rows = [
        {"id": 1, "v": "b", "_change_type": "update_postimage", "_commit_version": 2},
        {"id": 1, "v": "a", "_change_type": "update_preimage", "_commit_version": 2},
        {"id": 1, "v": "a", "_change_type": "insert", "_commit_version": 1},
    ]
    folder.write(f"orders/{name}", write(rows * count))
    read = folder.read()
    assert read.unfit == []
    found = sorted(zip(read.versions, [(kind, row["v"]) for kind, row in read.changes], strict=True))
    assert [change for _, change in found] == [change for change in in_order for _ in range(count)]


@every_kind
def test_operations_of_the_settings_take_the_place_of_all_others_and_null_is_none(
    name: str, write: Write, count: int, tmp_path: Path
) -> None:
    folder = orders(tmp_path, {"id": "int"}, operations={"X": "delete", "false": "insert"})
    rows = [{"op": value, "id": 1} for value in ("X", "false", "insert", None)]
    folder.write(f"orders/{name}", write(rows * count))
    read = folder.read()
    assert [kind for kind, _ in read.changes] == ["d", "i"] * count
    assert len(read.unfit) == 2 * count
    assert all("has the unknown operation" in unfit.reason for unfit in read.unfit)


def test_a_declared_time_or_operation_is_in_a_file_without_a_header_once(tmp_path: Path) -> None:
    columns = {"ts": "timestamp", "id": "int", "op": "text", "v": "text"}
    folder = orders(tmp_path, columns, time_column="ts", csv={"header": False})
    folder.write("orders/1.csv", "insert,2026-01-01 10:00:00,1,x\n")
    read = folder.read()
    assert (read.unfit, read.changes) == (
        [],
        [("i", {"ts": datetime.fromisoformat("2026-01-01T10:00"), "id": 1, "op": "insert", "v": "x"})],
    )
