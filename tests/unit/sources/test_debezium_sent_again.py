"""Truncates and key changes that are sent again, in a topic of several partitions, delete nothing that is newer."""

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cdc_pipeline.record import Operation
from cdc_pipeline.sources.debezium.versions import encode_place
from tests.support.decoding import ORDERS, PLACEHOLDER, Decoding, Json, orders, postgres
from tests.support.reference.model import Event, Id, Row, apply_events, visible

TABLE = orders(id=["id"], columns={"id": "int8", "v": "text"})
HEADERS = {"trace": "x"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    partition: int
    value: Json
    headers: Json


def insert(partition: int, lsn: int, number: int) -> Sent:
    after = {"id": number, "v": f"row {number} at {lsn}"}
    return Sent(partition=partition, value=postgres("c", lsn, after=after), headers=HEADERS)


def delete(partition: int, lsn: int, number: int) -> Sent:
    return Sent(partition=partition, value=postgres("d", lsn, before={"id": number, "v": None}), headers=HEADERS)


def truncate(partition: int, lsn: int) -> Sent:
    return Sent(partition=partition, value=postgres("t", lsn), headers=HEADERS)


def key_change(partitions: tuple[int, int], lsn: int, old: int, new: int) -> list[Sent]:
    before, after = {"id": old, "v": None}, {"id": new, "v": f"row {new} at {lsn}"}
    return [
        Sent(
            partition=partitions[0],
            value=postgres("d", lsn, before=before),
            headers={"__debezium.newkey": json.dumps({"id": new})},
        ),
        Sent(
            partition=partitions[1],
            value=postgres("c", lsn, after=after),
            headers={"__debezium.oldkey": json.dumps({"id": old})},
        ),
    ]


def table_after(story: list[Sent], reader: Decoding | None = None) -> dict[int, str]:
    reader = reader or Decoding(TABLE, partitions=2)
    for each in story:
        reader.send(each.value, headers=each.headers, partition=each.partition)
    assert reader.refused == []
    found = visible(apply_events({}, [_event(row) for row in reader.rows], columns=("v",)))
    return {int(str(number)): str(row.values["v"]) for (number,), row in found.items()}


def _event(row: dict[str, Any]) -> Event:
    return Event(
        operation=Operation(row["_cdc_op"]),
        version=row["_cdc_version"],
        id=(row["id"],) if "id" in row else (),
        old_id=(row["_cdc_old_id"],) if "_cdc_old_id" in row else (),
        values={"v": row["v"]} if "v" in row else {},
    )


STORIES: dict[str, tuple[list[Sent], int]] = {
    "a truncate": ([insert(0, 10, 1), truncate(0, 50), insert(1, 60, 2), insert(0, 100, 3)], 1),
    "a key change": ([insert(0, 10, 1), *key_change((0, 1), 50, 1, 2), insert(0, 60, 1), insert(1, 100, 3)], 1),
    "a key change to an id that was deleted before": (
        [
            *(insert(1, 10, 2), insert(0, 20, 1), delete(1, 40, 2)),
            *key_change((0, 1), 50, 1, 2),
            *(insert(0, 60, 1), insert(1, 100, 3)),
        ],
        2,
    ),
    "a key change inside a partition, with what is before it": (
        [insert(0, 10, 1), *key_change((0, 0), 50, 1, 2), insert(1, 60, 5), insert(0, 100, 3)],
        0,
    ),
}


@pytest.mark.parametrize(("story", "since"), STORIES.values(), ids=STORIES)
def test_a_log_that_is_sent_again_ends_where_it_ended(story: list[Sent], since: int) -> None:
    once = table_after(story)
    assert once
    assert table_after(story + story[since:]) == once
    assert table_after(story + [each for each in story[since:] if each.value["source"]["lsn"] <= 50]) == once


@pytest.mark.parametrize("behind", [[], [insert(0, 101, 7)], [insert(1, 100, 5), insert(0, 101, 7)]], ids=len)
@pytest.mark.parametrize("changes", [1, 2])
@pytest.mark.parametrize("lines_before", [0, 3])
def test_a_row_whose_key_changed_does_not_come_back_when_all_is_sent_again(
    lines_before: int, changes: int, behind: list[Sent]
) -> None:
    """Places in the other partition, which the lines before move, decide nothing."""
    moved = [key_change((0, 1), 50, 1, 2), key_change((1, 0), 60, 2, 3)][:changes]
    story = [insert(0, 10, 1), *(half for change in moved for half in change), *behind]
    before = [insert(1, 1 + number, 200 + number) for number in range(lines_before)]
    once = table_after(before + story)
    assert not {1, 2, 3} & once.keys() ^ {changes + 1}
    for restart_at in range(len(story) + 1):
        reader = Decoding(TABLE, partitions=2)
        table_after(before + story + story[:restart_at], reader)
        reader.restart()
        assert table_after(story[restart_at:], reader) == once


def test_what_is_below_the_horizon_was_deleted_before() -> None:
    story = [insert(1, 60, 2), insert(0, 100, 3), truncate(0, 50)]
    horizons = {ORDERS: encode_place(55 << 64 | 55, 0)}
    reader = Decoding(TABLE, partitions=2, horizons=horizons)
    assert table_after(story, reader) == {2: "row 2 at 60", 3: "row 3 at 100"}
    assert [row["_cdc_op"] for row in reader.rows] == ["i", "i"]


def test_in_one_partition_the_order_of_the_lines_decides() -> None:
    story = [insert(0, 10, 1), truncate(0, 50), insert(0, 60, 2)]
    reader = Decoding(TABLE)
    assert table_after([*story, *story], reader) == {2: "row 2 at 60"}
    assert table_after([insert(0, 10, 1), truncate(0, 5)], Decoding(TABLE)) == {}


BY_COMMIT: dict[str, dict[str, str]] = {
    "db2": {"commit_lsn": "00000025:00000d98:00ac"},
    "oracle": {"commit_scn": "12", "scn": "11"},
    "informix": {},
}


def of_one_commit(connector: str, sent: list[Sent]) -> list[Sent]:
    """The same events of a connector that gives all of a transaction, or of a part of it, one place in its log."""
    source = {"connector": connector, "db": "shop", "schema": "public", "table": "orders", "ts_ms": 1_700_000_000_000}
    return [
        Sent(
            partition=each.partition,
            value={**each.value, "source": source | BY_COMMIT[connector]},
            headers=each.headers,
        )
        for each in sent
    ]


def _at_time(each: Sent) -> Sent:
    """The same event of a connector that is ordered by time."""
    lsn = each.value["source"]["lsn"]
    (sent,) = of_one_commit("informix", [each])
    return replace(sent, value={**sent.value, "source": sent.value["source"] | {"ts_ms": lsn}})


@pytest.mark.parametrize("again", [False, True], ids=["once", "sent again"])
@pytest.mark.parametrize("rows_before", [1, 9])
@pytest.mark.parametrize("connector", BY_COMMIT)
def test_a_key_change_behind_another_write_of_its_transaction_takes_the_old_row_away(
    connector: str, rows_before: int, *, again: bool
) -> None:
    written = [insert(0, 10, number) for number in range(8 - rows_before, 8)]
    story = of_one_commit(connector, [*written, *key_change((0, 1), 10, 7, 2), insert(0, 10, 30)])
    left = {each.value["after"]["id"] for each in written} - {7} | {2, 30}
    assert table_after(story * 2 if again else story).keys() == left


@pytest.mark.parametrize("connector", BY_COMMIT)
def test_a_key_change_after_a_restart_takes_the_old_row_away_that_may_be_of_its_transaction(connector: str) -> None:
    """A row that stayed would be wrong for good. One that the new half leaves out is hidden and counted."""
    written, *halves = of_one_commit(connector, [insert(0, 10, 7), *key_change((0, 1), 10, 7, 2)])
    reader = Decoding(TABLE, partitions=2)
    table_after([written], reader)
    reader.restart()
    assert table_after(halves, reader).keys() == {2}


@pytest.mark.parametrize("rows_before", [0, 2, 9])
@pytest.mark.parametrize("connector", BY_COMMIT)
def test_key_changes_of_one_transaction_keep_the_values_that_they_leave_out(connector: str, rows_before: int) -> None:
    """A delete of its own, at the place of the old half, would be newer than the move, which then takes nothing."""
    others = range(100, 100 + rows_before)
    changes = [half for old in (3, 5, 7) for half in key_change((0, 1), 10, old, old + 1)]
    reader = Decoding(TABLE, partitions=2)
    story = of_one_commit(connector, [*(insert(0, 10, number) for number in others), *changes])
    assert table_after(story, reader).keys() == {4, 6, 8, *others}
    assert [(row["_cdc_op"], row["id"]) for row in reader.rows[rows_before:]] == [
        (op, number) for old in (3, 5, 7) for op, number in (("d", old), ("m", old + 1))
    ]


@pytest.mark.parametrize("rows_before", [0, 1, 2, 9])
def test_a_value_that_a_key_change_leaves_out_is_that_of_an_earlier_transaction(rows_before: int) -> None:
    """Each event is applied before the next one comes: a delete of its own would have taken the old row away."""
    first = [insert(0, 5, 3), *(insert(0, 5, 200 + number) for number in range(rows_before))]
    others = [insert(0, 10, 100 + number) for number in range(rows_before)]
    old, new = key_change((0, 1), 10, 3, 4)
    new.value["after"]["v"] = PLACEHOLDER
    reader, rows, seen = Decoding(TABLE, partitions=2), dict[Id, Row](), 0
    for each in map(_at_time, [*first, *others, old, new]):
        reader.send(each.value, headers=each.headers, partition=each.partition)
        rows = apply_events(rows, [_event(row) for row in reader.rows[seen:]], columns=("v",))
        seen = len(reader.rows)
    shown = visible(rows)
    assert ((3,) in shown, shown[4,].values["v"]) == (False, "row 3 at 5")


@pytest.mark.parametrize("rows_before", [1, 9])
def test_rows_of_earlier_transactions_that_are_sent_again_are_taken_away_behind_them(rows_before: int) -> None:
    """What is sent again has versions at the highest place so far, above the create event's."""
    written = [_at_time(insert(0, 5, number)) for number in range(8 - rows_before, 8)]
    story = [*written, *map(_at_time, key_change((0, 1), 10, 7, 30))]
    once = table_after(story)
    assert 7 not in once
    assert table_after(story * 2) == once


@pytest.mark.parametrize("connector", BY_COMMIT)
def test_both_halves_in_one_partition_keep_the_order_of_their_lines(connector: str) -> None:
    reader = Decoding(TABLE, partitions=2)
    story = of_one_commit(connector, [insert(0, 10, 7), *key_change((0, 0), 10, 7, 2)])
    with_headers = [reader.record(each.value, headers=each.headers) for each in story]
    reader.send_lines(with_headers)
    assert [(row["_cdc_op"], row["id"]) for row in reader.rows] == [("i", 7), ("d", 7), ("m", 2)]
