"""The log as rows with an operation, as AWS DMS and programs of one's own write it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.fuzz.arriving import LogLine
from tests.fuzz.event_log import Change, Row

OPERATION, ORDER, BEFORE = "Op", "seq", "BI_"
_CODES = {"r": "I", "c": "I", "u": "U", "d": "D", "t": "T"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWording:
    """Implements `Wording`. Each table is a partition; `names` are the tables.

    `whole`: rows show the old row, so that a key change is one row. `ordered`: without a column that orders them.
    """

    names: Sequence[str]
    whole: bool
    ordered: bool

    @property
    def partitions(self) -> int:
        return len(self.names)

    def lines(self, change: Change) -> list[LogLine]:
        shows_old = self.whole or not change.table.key
        if shows_old and change.new_key is not None:
            return []
        old = change.row if change.op == "d" else change.old if change.op == "u" or shows_old else None
        op = "U" if shows_old and change.is_second_half else _CODES[change.op]
        row = self._row(op, change, change.row, old if shows_old else None, shows_old=shows_old)
        return [
            LogLine(
                partition=list(self.names).index(change.table.name),
                text=json.dumps(row),
                transaction=change.transaction,
                repeats=bool(change.table.key),
            )
        ]

    def _row(self, op: str, change: Change, new: Row, old: Row | None, *, shows_old: bool) -> dict[str, Any]:
        order = {} if self.ordered else {ORDER: change.position}
        values = {column: new.get(column) for column in change.columns}
        before = {BEFORE + column: (old or {}).get(column) for column in change.columns} if shows_old else {}
        return {OPERATION: op, **order, **values, **before}
