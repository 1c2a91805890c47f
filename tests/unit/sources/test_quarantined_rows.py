"""Rows of change files that cannot be applied: the table that they are quarantined at."""

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
