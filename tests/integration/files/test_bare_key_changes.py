"""Key changes in lines without headers, of which parts come again or in another run."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.event_files import EventFolder

PLACEHOLDER = "__debezium_unavailable_value"
TABLE = {"name": "public.t", "columns": {"id": "int", "n": "int", "big": "text"}, "id": ["id"]}
Row = dict[str, Any]


@pytest.fixture
def events(tmp_path: Path, database: str) -> EventFolder:
    return EventFolder(folder=tmp_path, store_url=database, tables=(TABLE,))


def envelope(op: str, lsn: int, /, before: Row | None = None, after: Row | None = None) -> Row:
    place = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "t", "lsn": lsn, "txId": lsn}
    return {"op": op, "before": before, "after": after, "source": place, "ts_ms": 1_700_000_000_000}


INSERT = envelope("c", 1, after={"id": 1, "n": 1, "big": "b"})
DELETE = envelope("d", 2, before={"id": 1, "n": None, "big": None})
CREATE = envelope("c", 2, after={"id": 2, "n": 1, "big": PLACEHOLDER})
UPDATE = envelope("u", 3, after={"id": 2, "n": 5, "big": PLACEHOLDER})
KEPT = {"id": 2, "n": 5, "big": "b"}


@pytest.mark.parametrize(
    "lines",
    [
        [INSERT, INSERT, DELETE, DELETE, None, None, CREATE, CREATE, UPDATE, UPDATE],
        [INSERT, DELETE, None, CREATE, DELETE, None, CREATE, UPDATE],
        [INSERT, DELETE, None, CREATE, CREATE, UPDATE],
        [INSERT, DELETE, None, CREATE, UPDATE, CREATE, UPDATE],
    ],
    ids=["each line twice", "the key change twice", "its create twice", "its create again later"],
)
def test_a_repeated_key_change_keeps_what_was_not_sent(events: EventFolder, lines: list[Row | None]) -> None:
    events.write("0/a.jsonl", *lines)
    events.consume()
    assert events.rows("public.t") == [KEPT]


@pytest.mark.parametrize("between", [[], [None]])
def test_a_key_change_that_two_runs_read_brings_no_placeholder(events: EventFolder, between: list[None]) -> None:
    """The second run does not know the old row, so the new one waits for its value, and shows it when it comes."""
    events.write("0/a.jsonl", INSERT, DELETE, *between)
    events.consume()
    events.write("0/a.jsonl", CREATE, UPDATE)
    events.consume()
    assert events.rows("public.t") == []
    events.write("0/a.jsonl", envelope("u", 4, after=KEPT))
    events.consume()
    assert events.rows("public.t") == [KEPT]


@pytest.mark.parametrize(("big", "seen"), [(PLACEHOLDER, [INSERT["after"]]), ("b", [])])
def test_the_old_row_stays_if_the_create_shows_its_key_change_and_waits(
    events: EventFolder, big: str, seen: list[Row]
) -> None:
    events.write("0/a.jsonl", INSERT, DELETE, envelope("c", 2, after={"id": 2, "n": "x", "big": big}))
    events.consume()
    assert events.rows("public.t") == seen
    assert ["the value of n does not fit" in each["reason"] for each in events.quarantined()] == [True]
