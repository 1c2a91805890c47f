"""Key changes in lines without headers, of which parts come again or in another run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.record import TableName
from tests.support.event_files import EventFolder, events_of
from tests.support.streams import run_sql

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


LINES: dict[str, list[Row | None]] = {
    "each line once": [INSERT, DELETE, None, CREATE, UPDATE],
    "each line twice": [INSERT, INSERT, DELETE, DELETE, None, None, CREATE, CREATE, UPDATE, UPDATE],
    "the key change twice": [INSERT, DELETE, None, CREATE, DELETE, None, CREATE, UPDATE],
    "its create twice": [INSERT, DELETE, None, CREATE, CREATE, UPDATE],
    "its create again later": [INSERT, DELETE, None, CREATE, UPDATE, CREATE, UPDATE],
}


@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
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


@pytest.mark.parametrize("big", [PLACEHOLDER, "b"])
@pytest.mark.parametrize("replayed", [False, True], ids=["dropped", "replayed"])
def test_the_old_row_goes_at_once_if_the_create_of_its_key_change_waits(
    events: EventFolder, big: str, *, replayed: bool
) -> None:
    """The source's correction of the new row names the new id alone, so nothing else would ever delete the old row."""
    events.write("0/a.jsonl", INSERT, DELETE, envelope("c", 2, after={"id": 2, "n": "x", "big": big}))
    events.consume()
    assert events.rows("public.t") == []
    assert ["the value of n does not fit" in each["reason"] for each in events.quarantined()] == [True]
    decide(events, replayed=replayed)
    events.write("0/a.jsonl", envelope("u", 3, after=KEPT))
    events.consume()
    assert events.rows("public.t") == [KEPT]


def test_a_key_change_that_is_replayed_behind_the_delete_of_its_old_row_keeps_what_was_not_sent(
    events: EventFolder,
) -> None:
    headers = {"__debezium.oldkey": json.dumps({"id": 1})}
    create = envelope("c", 2, after={"id": 2, "n": "x", "big": PLACEHOLDER})
    events.write("0/a.jsonl", INSERT, {"key": {"id": 2}, "value": create, "headers": headers}, UPDATE)
    events.consume()
    assert events.rows("public.t") == []
    decide(events, replayed=True)
    assert events.rows("public.t") == [KEPT]


@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
def test_a_key_change_that_waited_for_the_columns_of_its_table_is_replayed_as_it_would_have_been(
    events: EventFolder, lines: list[Row | None]
) -> None:
    events.write("0/a.jsonl", *lines)
    replace(events, tables=({"name": "public.t", "id": ["id"]},)).consume()
    assert len(events.quarantined()) == sum(line is not None for line in lines)
    events.consume()
    decide(events, replayed=True)
    assert events.rows("public.t") == [KEPT]


def test_a_create_that_is_replayed_behind_its_delete_brings_no_placeholder(events: EventFolder) -> None:
    """The delete is not with it, so the new row waits for what was left out, and shows it when it comes."""
    events.write("0/a.jsonl", INSERT, DELETE, envelope("c", 2, after={"id": 2, "n": "x", "big": PLACEHOLDER}))
    events.consume()
    decide(events, replayed=True)
    assert events.rows("public.t") == []
    events.write("0/a.jsonl", envelope("u", 4, after=KEPT))
    events.consume()
    assert events.rows("public.t") == [KEPT]


FIELDS = [{"field": name, "type": type_, "optional": True} for name, type_ in (("id", "int32"), ("big", "string"))]
SCHEMA = {"type": "struct", "fields": [{"field": name, "fields": FIELDS} for name in ("before", "after")]}
FIRST = envelope("c", 1, after={"id": 1, "big": "b"})
OLD = envelope("d", 2, before={"id": 1, "big": None})


@pytest.mark.parametrize("lines", [[OLD], [OLD, None], [OLD, OLD]], ids=["once", "with a tombstone", "twice"])
@pytest.mark.parametrize("other_folders", [[], ["1"]])
def test_the_old_row_goes_at_once_if_the_create_of_its_key_change_cannot_be_read(
    events: EventFolder, lines: list[Row | None], other_folders: list[str]
) -> None:
    """Without headers the create does not name the old row, so its replay would not delete it either."""
    for folder in other_folders:
        events.write(f"{folder}/a.jsonl")
    create = envelope("c", 2, after={"id": 2, "big": PLACEHOLDER, "extra": 1})
    events.write("0/a.jsonl", {"schema": SCHEMA, "payload": FIRST}, *lines, create)
    undeclared = replace(events, tables=({"name": "public.t", "id": ["id"]},))
    undeclared.consume()
    assert undeclared.rows("public.t") == []
    assert ["the type of the new column extra" in each["reason"] for each in events.quarantined()] == [True]
    declared = {"name": "public.t", "columns": {"id": "int", "big": "text", "extra": "int"}, "id": ["id"]}
    events = replace(events, tables=(declared,))
    events.consume()
    decide(events, replayed=True)
    assert events.rows("public.t") == []
    events.write("0/a.jsonl", envelope("u", 3, after={"id": 2, "big": "b", "extra": 1}))
    events.consume()
    assert events.rows("public.t") == [{"id": 2, "big": "b", "extra": 1}]


def test_a_key_change_that_is_refused_by_every_replay_deletes_its_old_row_once(events: EventFolder) -> None:
    """Each of its replays is alone, and a killed repair of the table remains one."""
    create = envelope("c", 2, after={"id": 2, "n": "x", "big": PLACEHOLDER})
    headers = {"__debezium.oldkey": json.dumps({"id": 1})}
    events.write("0/a.jsonl", INSERT, {"key": {"id": 2}, "value": create, "headers": headers})
    replace(events, tables=({"name": "public.t", "id": ["id"]},)).consume()
    events.consume()
    with events.opened() as pipeline:
        waiting = pipeline.store.quarantine.entries(state=QuarantineState.WAITING)
        assert [each.why for each in pipeline.replay().run(waiting[:1])] == [""]
        table = pipeline.store.tables.table(TableName.parse("shop.public.t"))
        with pipeline.table_work.leased(table.table_id) as (lease, _):
            pipeline.store.tables.begin_repair(lease)
    assert events.rows("public.t") == [{"id": 1, "n": 1, "big": "b"}]
    for _ in range(2):
        with events.opened() as pipeline:
            (outcome,) = pipeline.replay().run(waiting[1:])
            assert (outcome.state, "value of n" in outcome.why) == (QuarantineState.WAITING, True)
            assert [row["_cdc_op"] for row in events_of(pipeline, table.name)] == ["i", "d"]
            assert pipeline.store.tables.table(table.name).under_repair
    assert events.rows("public.t") == []
    events.write("0/a.jsonl", UPDATE)
    events.consume()
    decide(events, replayed=True)
    assert events.rows("public.t") == [KEPT]


def decide(events: EventFolder, *, replayed: bool) -> None:
    """Drops every event that waits, or corrects and replays it."""
    run_sql(events.store_url, """UPDATE cdc.quarantine SET payload = replace(payload::text, '\\"x\\"', '1')::json""")
    with events.opened() as pipeline:
        waiting = pipeline.store.quarantine.entries(state=QuarantineState.WAITING)
        if not replayed:
            pipeline.replay().drop([each.quarantine_id for each in waiting], "the source corrected the row")
        else:
            assert [each.why for each in pipeline.replay().run(waiting)] == [""] * len(waiting)
