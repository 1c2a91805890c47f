"""What the real Debezium recorded of a PostgreSQL server, tests/data/debezium, and how it is laid into files."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.event_files import EventFolder

DATA = Path(__file__).parents[1] / "data" / "debezium"
LAST_OF_THE_STATEMENTS = 28370280
"""The position of the insert of order 40. What the recordings hold behind it are an order 50 and an update of 40."""
COLUMNS = {
    "id": "bigint",
    "customer": "text",
    "amount": "numeric(12,2)",
    "qty": "int",
    "tags": "text[]",
    "meta": "jsonb",
    "payload": "bytea",
    "big": "text",
    "created": "timestamptz",
    "upd": "timestamp",
    "d": "date",
    "u": "uuid",
    "b": "boolean",
    "f8": "float8",
    "extra": "int",
}
PLAIN = (
    {"name": "public.orders", "columns": COLUMNS},
    {"name": "public.keyless", "columns": {"a": "int", "t": "text"}},
)
WITH_SCHEMA = ({"name": "public.orders"}, {"name": "public.keyless"})
ORDER_40 = {
    "id": 40,
    "customer": "after truncate",
    "created": datetime(2026, 11, 21, 10, 44, 42, 41723, UTC),
    "extra": 7,
}
Message = dict[str, Any]


def recorded(name: str) -> list[Message]:
    text = (DATA / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def position(message: Message) -> int:
    value = json.loads(message["value"] or "null")
    envelope = value.get("payload", value) if value else None
    found = (envelope or {}).get("source", {}).get("lsn", 0)
    return int(found)


def until_the_last_statement(messages: Iterable[Message]) -> list[Message]:
    return [message for message in messages if position(message) <= LAST_OF_THE_STATEMENTS]


def lay_out(events: EventFolder, messages: list[Message], layout: str) -> None:
    """`one`: a single stream partition. `recorded`: the partitions of the broker, a file per topic."""
    for message in _in_log_order(messages) if layout == "one" else messages:
        line = {name: message[name] for name in ("key", "value", "headers")}
        name = "0/events" if layout == "one" else f"{message['partition']}/{message['topic']}"
        events.write(f"{name}.jsonl", line)


def _in_log_order(messages: Iterable[Message]) -> list[Message]:
    """As one partition would have them: in the order of the log, a tombstone behind its delete."""
    order: list[tuple[int, int, Message]] = []
    last = 0
    for number, message in enumerate(messages):
        last = position(message) or last
        order.append((last, number, message))
    return [message for _, _, message in sorted(order, key=lambda each: each[:2])]


def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what is NULL."""
    return [{name: value for name, value in row.items() if value is not None} for row in rows]
