"""Random lines of a script for the event log: transactions, and what happens to its lines on their way.

A line is a JSON list of statements: those of the log, or one of

    hold PARTITION; flow PARTITION; again LINES; roll PARTITION; odd PARTITION TEXT; expire
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.fuzz.event_log import LARGE, EventLog, LoggedTable, Row, Statement

NEW_COLUMNS = {"a": "int8", "b": "text", "c d": "numeric(10,2)", "É": "boolean", "e": "bytea"}
"""With their types. Each may be added once: no event shows that a name stands for another column now."""
ODD = ("", "{", '"x"', '{"op": "u"}', '{"after": 7, "op": "c", "source": {"table": "orders"}}', "null")
WEIGHTS = {"insert": 5, "update": 6, "move": 2, "delete": 3, "truncate": 0.3, "add": 0.5, "drop": 0.3}
ON_THE_WAY = {"hold": 1, "flow": 2, "again": 2, "roll": 1, "odd": 0.5, "expire": 0.3}


@dataclass(slots=True, kw_only=True)
class EventChanges:
    """`partitions`: their number. `verbs`: the statements that there may be."""

    chance: Random
    log: EventLog
    partitions: int
    verbs: Sequence[str]

    def change(self) -> str:
        if self.chance.random() < 0.2:
            return json.dumps([self._on_the_way()])
        statements = [self._statement() for _ in range(self.chance.choice((1, 1, 2, 4)))]
        early: list[Statement] = [["early"]] if self.chance.random() < 0.15 else []
        return json.dumps([*early, *statements], ensure_ascii=False)

    def _on_the_way(self) -> Statement:
        verb = self.chance.choices(list(ON_THE_WAY), list(ON_THE_WAY.values()))[0]
        partition = self.chance.randrange(self.partitions)
        match verb:
            case "again":
                return [verb, self.chance.randint(1, 12)]
            case "odd":
                return [verb, partition, self.chance.choice(ODD)]
            case "expire":
                return [verb]
            case _:
                return [verb, partition]

    def _statement(self) -> Statement:
        table = self.chance.choice(list(self.log.tables.values()))
        kind = self.chance.choices(self.verbs, [WEIGHTS[verb] for verb in self.verbs])[0]
        found: Statement = getattr(self, f"_{kind}")(table)
        return found

    def _insert(self, table: LoggedTable) -> Statement:
        told = (column for column in table.columns if column in table.key or self.chance.random() < 0.8)
        return ["insert", table.name, {column: self._value(table, column) for column in told}]

    def _update(self, table: LoggedTable) -> Statement:
        free = [column for column in table.columns if column not in table.key]
        sets = self.chance.sample(free, min(len(free), self.chance.randint(1, 2)))
        return ["update", table.name, self._some(table), {column: self._value(table, column) for column in sets}]

    def _move(self, table: LoggedTable) -> Statement:
        sets: Row = {column: self._value(table, column) for column in table.key}
        if self.chance.random() < 0.3:
            return ["update", table.name, self._some(table), sets | self._update(table)[-1]]
        return ["update", table.name, self._some(table), sets]

    def _delete(self, table: LoggedTable) -> Statement:
        return ["delete", table.name, self._some(table)]

    def _truncate(self, table: LoggedTable) -> Statement:
        return ["truncate", self.chance.choice(([table.name], list(self.log.tables)))]

    def _add(self, table: LoggedTable) -> Statement:
        return ["add", table.name, *self.chance.choice(list(NEW_COLUMNS.items()))]

    def _drop(self, table: LoggedTable) -> Statement:
        """Not of a table without a key, whose old rows do not show what the lake's have."""
        free = [column for column in table.columns if column not in table.key]
        if not table.key or not free:
            return self._add(table)
        return ["drop", table.name, self.chance.choice(free[1:] or free)]

    def _some(self, table: LoggedTable) -> list[str | None]:
        if table.rows and self.chance.random() < 0.95:
            return table.key_of(self.chance.choice(table.rows))
        return [self._value(table, column) for column in table.key or table.columns]

    def _value(self, table: LoggedTable, column: str) -> str | None:
        in_key, type_ = column in table.key, table.columns[column]
        if not in_key and self.chance.random() < 0.15:
            return None
        number = self.chance.randrange(12)
        values: dict[str, Any] = {
            "int8": [str(number)],
            "numeric(10,2)": [f"{number}.{number:02}"],
            "timestamptz": [f"2020-02-{number + 1:02} 12:34:56.789+00"],
            "boolean": ["t", "f"],
            "bytea": ["\\x00ff", "\\x"],
            "text": [f"t{number}", f"t{number}"]
            if in_key
            else [f"t{number}", "", f"{LARGE}{number}", f"{LARGE}{number}"],
        }
        found: str = self.chance.choice(values[type_])
        return found
