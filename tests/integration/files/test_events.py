"""What Debezium's events mean for rows: partial rows, key changes, bags, and the lines that cannot be rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.record import TableName
from tests.support.event_files import EventFolder, events_of, slices_of

PLACEHOLDER = "__debezium_unavailable_value"
COLUMNS = {"id": "int", "name": "text", "big": "text"}
TABLE = {"name": "public.t", "columns": COLUMNS, "id": ["id"]}
NAME = TableName.parse("shop.public.t")
Row = dict[str, Any]
BY_LSN = {"ordered": False, "sequence_by": ["source.lsn"]}


@pytest.fixture
def events(tmp_path: Path, database: str) -> EventFolder:
    return EventFolder(folder=tmp_path, store_url=database, tables=(TABLE,))


def changed(folder: EventFolder, table: Row, **source: Any) -> EventFolder:
    return EventFolder(folder=folder.folder, store_url=folder.store_url, tables=(table,), source=source)


def envelope(op: str, lsn: object, /, before: Row | None = None, after: Row | None = None, **source: Any) -> Row:
    place = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "t", "lsn": lsn, "txId": lsn}
    return {"op": op, "before": before, "after": after, "source": place | source, "ts_ms": 1_700_000_000_000}


def row(id_: int | None, name: str | None = "n", big: str | None = "b") -> Row:
    return {"id": id_, "name": name, "big": big}


def only_id(id_: int) -> Row:
    """A before image where only the key is known."""
    return row(id_, None, None)


def test_a_value_that_was_not_sent_is_kept(events: EventFolder) -> None:
    events.write("0/a.jsonl", envelope("c", 1, after=row(1)), envelope("u", 2, after=row(1, name="m", big=PLACEHOLDER)))
    events.consume()
    assert events.rows("public.t") == [row(1, name="m")]


@pytest.mark.parametrize(
    ("last", "kept"),
    [
        (envelope("r", 2, after=row(1, big=PLACEHOLDER)), PLACEHOLDER),
        (envelope("c", 2, after=row(1, big=PLACEHOLDER)), PLACEHOLDER),
        ({"key": {"id": 1}, "value": envelope("c", 2, after=row(1, big=PLACEHOLDER)), "headers": {}}, PLACEHOLDER),
        (envelope("u", 2, before=row(1), after=row(1, big=PLACEHOLDER)), PLACEHOLDER),
        (envelope("u", 2, before=only_id(1), after=row(1, big=PLACEHOLDER)), "b"),
        (envelope("r", 2, after=row(1, big=PLACEHOLDER), connector="oracle"), "b"),
    ],
)
def test_a_real_text_that_equals_the_placeholder_survives_where_no_value_can_be_left_out(
    events: EventFolder, last: Row, kept: str
) -> None:
    events.write("0/a.jsonl", envelope("c", 1, after=row(1)), last)
    events.consume()
    assert events.rows("public.t") == [row(1, big=kept)]


@pytest.mark.parametrize(("file", "source"), [("1/a.jsonl", {}), ("0/a.jsonl", BY_LSN)])
def test_a_bare_create_may_be_half_a_key_change_where_the_other_half_may_stand_elsewhere(
    events: EventFolder, file: str, source: Row
) -> None:
    """In another stream partition, or anywhere if lines have no order."""
    folder = changed(events, TABLE, **source)
    folder.write("0/a.jsonl", envelope("c", 1, after=row(1, big=PLACEHOLDER)))
    folder.write(file, envelope("c", 1, after=row(2)))
    folder.consume()
    assert folder.rows("public.t") == [row(2)]


def test_a_column_that_an_event_does_not_know_is_null_in_an_insert_and_kept_by_an_update(events: EventFolder) -> None:
    old = {"id": 1, "name": "n"}
    events.write(
        "0/a.jsonl",
        envelope("c", 1, after=row(1)),
        envelope("u", 2, after=old),
        envelope("c", 3, after={"id": 2, "name": "o"}),
    )
    events.consume()
    assert events.rows("public.t") == [row(1), row(2, name="o", big=None)]


OLD_KEY, NEW_KEY = "__debezium.oldkey", "__debezium.newkey"
DELETE_HALF = envelope("d", 5, before=only_id(1))
CREATE_HALF = envelope("c", 5, after=row(2, big=PLACEHOLDER))
KEY_CHANGES: dict[str, list[Row | None]] = {
    "an update that shows both keys": [envelope("u", 5, before=only_id(1), after=row(2, big=PLACEHOLDER))],
    "halves that name each other": [
        {"key": {"id": 1}, "value": DELETE_HALF, "headers": {NEW_KEY: {"id": 2}}},
        {"key": {"id": 1}, "value": None, "headers": {NEW_KEY: {"id": 2}}},
        {"key": {"id": 2}, "value": CREATE_HALF, "headers": {OLD_KEY: {"id": 1}}},
    ],
    "halves side by side": [DELETE_HALF, None, CREATE_HALF],
}


@pytest.mark.parametrize("lines", KEY_CHANGES.values(), ids=KEY_CHANGES.keys())
def test_a_key_change_takes_what_was_not_sent_from_the_old_row(events: EventFolder, lines: list[Row | None]) -> None:
    events.write("0/a.jsonl", envelope("c", 1, after=row(1)), *lines)
    events.consume()
    assert events.rows("public.t") == [row(2)]
    with events.opened() as pipeline:
        found = events_of(pipeline, NAME)
    halves = [each for each in found if each["_cdc_op"] in "dm"]
    assert sorted(each["_cdc_op"] for each in halves) == ["d", "m"]
    assert len({each["_cdc_version"] for each in halves}) == 1


def test_halves_in_two_stream_partitions_meet_whichever_is_read_first(events: EventFolder) -> None:
    delete, tombstone, create = KEY_CHANGES["halves that name each other"]
    events.write("0/a.jsonl", create)
    events.write(
        "1/a.jsonl", envelope("c", 1, after=row(1)), delete, tombstone, envelope("c", 6, after=row(1, big="new"))
    )
    events.consume()
    assert events.rows("public.t") == [row(1, big="new"), row(2)]


def test_a_delete_takes_its_id_from_the_row_before_or_from_the_key(events: EventFolder) -> None:
    events.write("0/a.jsonl", *(envelope("c", number, after=row(number)) for number in (1, 2, 3)))
    events.write("0/b.jsonl", envelope("d", 4, before=only_id(1)), {"key": {"id": 2}, "value": envelope("d", 5)})
    events.consume()
    assert events.rows("public.t") == [row(3)]


def test_a_truncate_empties_the_tables_that_it_names_unless_it_is_to_be_ignored(tmp_path: Path, database: str) -> None:
    tables = tuple({**TABLE, "name": f"public.{name}"} for name in ("t", "u", "v"))
    kept = {**TABLE, "name": "public.w", "truncate": "ignore"}
    events = EventFolder(folder=tmp_path, store_url=database, tables=(*tables, kept))
    events.write("0/a.jsonl", *(envelope("c", 1, after=row(1), table=name) for name in "tuvw"))
    events.write("0/a.jsonl", *(envelope("t", 2, table=name) for name in "tuw"), envelope("c", 3, after=row(2)))
    events.consume()
    assert [len(events.rows(f"public.{name}")) for name in "tuvw"] == [1, 0, 1, 1]
    assert events.rows("public.t") == [row(2)]


BAG = {"name": "public.t", "columns": COLUMNS}


def test_rows_without_an_id_are_counted(events: EventFolder) -> None:
    bag = changed(events, BAG)
    bag.write(
        "0/a.jsonl",
        *(envelope("c", 1, after=row(1), n=number) for number in range(3)),
        envelope("u", 2, before=row(1), after=row(2)),
        envelope("d", 3, before=row(1)),
    )
    bag.consume()
    assert bag.rows("public.t") == [{"big": "b", "id": 1, "name": "n"}, {"big": "b", "id": 2, "name": "n"}]


def test_a_line_that_is_delivered_twice_counts_once_for_rows_without_an_id(events: EventFolder) -> None:
    bag, nowhere = changed(events, BAG), {"op": "c", "before": None, "after": row(7)}
    first, second = envelope("c", 1, after=row(1)), envelope("c", 2, after=row(1))
    bag.write("0/a.jsonl", first, first | {"ts_ms": 9}, second, second, nowhere, nowhere)
    bag.consume()
    assert [found["id"] for found in bag.rows("public.t")] == [1, 1, 7, 7]


def test_a_transaction_that_is_delivered_again_from_its_beginning_counts_once(events: EventFolder) -> None:
    """A connector that was killed in a transaction begins it again. A statement writes several rows at one place."""
    bag = changed(events, BAG)
    places = enumerate((5, 6, 6, 7))
    log = [envelope("c", lsn, after=row(number), sequence=f'["1","{lsn}"]', txId=9) for number, lsn in places]
    bag.write("0/a.jsonl", *log[:3], *log[:3], *log)
    bag.consume()
    assert [found["id"] for found in bag.rows("public.t")] == [0, 1, 2, 3]


def test_a_whole_log_that_is_delivered_again_counts_once_where_its_positions_are_exact(events: EventFolder) -> None:
    bag = changed(events, BAG)
    operations = enumerate("cctcc", start=1)
    log = [
        envelope(op, lsn, after=None if op == "t" else row(1), sequence=f'["{lsn}","{lsn}"]') for lsn, op in operations
    ]
    bag.write("0/a.jsonl", *log)
    bag.consume()
    bag.write("0/a.jsonl", *log, envelope("c", 6, after=row(1), sequence='["6","6"]'))
    bag.consume()
    assert len(bag.rows("public.t")) == 3


@pytest.mark.parametrize(
    "line", [envelope("u", 2, after=row(1)), envelope("d", 2), envelope("u", 2, before={"id": 1}, after=row(1))]
)
def test_a_change_without_the_whole_old_row_waits_with_what_mends_its_table(events: EventFolder, line: Row) -> None:
    bag = changed(events, BAG)
    bag.write("0/a.jsonl", envelope("c", 1, after=row(1)), line, envelope("c", 3, after=row(2)))
    bag.consume()
    (kept,) = bag.quarantined()
    assert kept["source_table"] == "shop.public.t"
    assert 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL' in kept["reason"]
    assert bag.rows("public.t") == [row(1), row(2)]


def test_the_id_is_that_of_the_keys_if_pipeline_yml_gives_none(events: EventFolder) -> None:
    keyed = changed(events, BAG)
    keyed.write("0/a.jsonl", *({"key": {"id": 1}, "value": envelope("c", lsn, after=row(1))} for lsn in (1, 2)))
    keyed.consume()
    assert keyed.rows("public.t") == [row(1)]


def test_lines_that_cannot_be_rows_are_quarantined_and_the_others_are_read(events: EventFolder) -> None:
    events.write(
        "0/a.jsonl",
        envelope("c", 1, after=row(1)),
        '{"op": "c", "aft',
        envelope("c", 2, after=row(None)),
        envelope("c", 3, after={"id": "two", "name": "n", "big": "b"}),
        envelope("u", 4),
        envelope("c", 5, after=row(2)),
    )
    events.consume()
    assert events.rows("public.t") == [row(1), row(2)]
    reasons = sorted(kept["reason"] for kept in events.quarantined())
    assert [reason.partition(": ")[0] for reason in reasons] == [f"a.jsonl line {number}" for number in (2, 3, 4, 5)]
    words = ("is no JSON", "the id column id is NULL", "the value of id does not fit", "has no after")
    assert all(word in reason for word, reason in zip(words, reasons, strict=True))


def test_a_key_change_whose_new_row_does_not_fit_deletes_the_old_row_and_the_new_one_waits(events: EventFolder) -> None:
    events.write("0/a.jsonl", envelope("c", 1, after=row(1)))
    events.write("0/a.jsonl", envelope("u", 2, before=only_id(1), after={"id": "two", "name": "n", "big": "b"}))
    events.consume()
    assert events.rows("public.t") == []
    assert len(events.quarantined()) == 1


def test_tables_that_are_not_listed_and_lines_without_rows_leave_nothing(events: EventFolder) -> None:
    events.write(
        "0/a.jsonl",
        envelope("c", 1, after=row(1), table="other"),
        envelope("c", 1, after=row(1), db="elsewhere"),
        {"ts_ms": 5},
        None,
        {"status": "END", "id": "1"},
    )
    events.consume()
    assert (events.rows("public.t"), events.quarantined()) == ([], [])


def test_events_without_a_source_belong_to_the_only_table(events: EventFolder) -> None:
    events.write("0/a.jsonl", {"op": "c", "before": None, "after": row(1)})
    events.consume()
    assert events.rows("public.t") == [row(1)]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"name": "public.t", "id": ["id"]}, "the column types of shop.public.t are not known"),
        ({**TABLE, "columns": {"id": "int"}, "id": ["nr"]}, "has no column 'nr'"),
    ],
    ids=["no types", "an id that the table does not have"],
)
def test_a_table_that_cannot_be_kept_waits_with_its_reason_and_its_neighbours_go_on(
    events: EventFolder, table: Row, reason: str
) -> None:
    both = replace(events, tables=(table, {**TABLE, "name": "public.other"}))
    both.write("0/a.jsonl", envelope("c", 1, after=row(1)), envelope("c", 2, after=row(2), table="other"))
    both.consume()
    assert both.rows("public.other") == [row(2)]
    assert [(kept["source_table"], reason in kept["reason"]) for kept in both.quarantined()] == [
        ("shop.public.t", True)
    ]
    mended = replace(events, tables=(TABLE, {**TABLE, "name": "public.other"}))
    mended.consume()
    with mended.opened() as pipeline:
        replayed = pipeline.replay().run(pipeline.store.quarantine.entries(state=QuarantineState.WAITING))
    assert [outcome.why for outcome in replayed] == [""]
    assert mended.rows("public.t") == [row(1)]


def test_what_is_newer_is_told_by_fields_where_files_are_not_ordered(events: EventFolder) -> None:
    unordered = changed(events, TABLE, **BY_LSN)
    late, deleted = envelope("u", 3, after=row(1, name="old")), envelope("d", 9, before=only_id(2))
    unordered.write("0/a.jsonl", envelope("c", 7, after=row(1, name="new")), deleted, envelope("c", 8, after=row(2)))
    unordered.write("1/a.jsonl", late, envelope("c", "10", after=row(3)), envelope("c", 0, after=row(4), lsn=None))
    unordered.consume()
    assert unordered.rows("public.t") == [row(1, name="new"), row(3)]
    (kept,) = unordered.quarantined()
    assert "has no version: source.lsn is missing or NULL" in kept["reason"]


def test_ordered_files_go_by_their_lines_whatever_the_events_say(events: EventFolder) -> None:
    events.write("0/a.jsonl", envelope("c", 9, after=row(1)), envelope("u", 3, after=row(1, name="last")))
    events.consume()
    assert events.rows("public.t") == [row(1, name="last")]
    with events.opened() as pipeline:
        assert len(slices_of(pipeline, NAME)) == 1
