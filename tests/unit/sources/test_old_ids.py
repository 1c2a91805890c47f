"""Rows before an update in change files: whether they show another id, and what becomes of the row that has it."""

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.unit.sources.test_row_columns import FEW, MANY, Write, every_kind, orders


@every_kind
def test_an_update_whose_old_id_is_the_same_in_another_spelling_keeps_its_row(
    name: str, write: Write, count: int, tmp_path: Path
) -> None:
    folder = orders(tmp_path, {"id": "numeric(12,2)", "v": "text"})
    row = {"op": "update", "id": "1.50", "v": "new", "BI_id": "1.5", "BI_v": "old"}
    folder.write(f"orders/{name}", write([row] * count))
    assert folder.read().changes == [("u", {"id": Decimal("1.50"), "v": "new"})] * count


@pytest.mark.parametrize("count", [FEW, MANY])
def test_an_old_id_that_is_another_text_in_the_lake_leaves_no_row_behind(count: int, tmp_path: Path) -> None:
    """JSON's 1.0 and 1.00 are equal numbers, and two texts of a numeric without precision."""
    folder = orders(tmp_path, {"id": "numeric", "v": "text"})
    folder.write("orders/1.jsonl", '{"op": "update", "id": 1.00, "v": "new", "BI_id": 1.0}\n' * count)
    assert folder.read().changes == [("d", {"id": "1.0", "v": None}), ("m", {"id": "1.00", "v": "new"})] * count


@every_kind
@pytest.mark.parametrize(
    ("old", "kept"),
    [
        ({"BI_a": 1}, []),
        ({"BI_a": 1, "BI_b": None}, []),
        ({"BI_a": 2}, ["u"]),
        ({"BI_a": "2.0", "BI_b": None}, ["u"]),
        ({"BI_a": None, "BI_v": "x"}, ["u"]),
    ],
)
def test_a_before_image_with_a_part_of_an_id_is_quarantined_if_it_differs(
    name: str, write: Write, count: int, tmp_path: Path, old: Mapping[str, Any], kept: list[str]
) -> None:
    """The old row could not be found, and would stay."""
    folder = orders(tmp_path, {"a": "numeric(4,1)", "b": "int", "v": "text"}, key=("a", "b"))
    row = {"op": "update", "a": "2", "b": 5, "v": "y"}
    folder.write(f"orders/{name}", write([{**row, **old}] * count))
    read = folder.read()
    assert [kind for kind, _ in read.changes] == kept * count
    assert len(read.unfit) == (0 if kept else count)
    assert all("changed a, which is of its id, and came without the whole old id" in each.reason for each in read.unfit)
