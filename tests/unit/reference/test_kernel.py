"""The kernel by examples: each is the smallest log in which it once differed from the model, or a rule of its own."""

import pytest

from cdc_pipeline.record import Operation
from tests.support.histories import tie_breaking_version
from tests.support.lake import event, move, version
from tests.support.reference.kernel import KeyedTable, deduplicate, join, join_keyless, net_copies, purge, show
from tests.support.reference.model import Event, KeylessRows, Row, apply_events

COLUMNS = ("a", "b")


def joined(*claims: list[Event], soft: bool = False) -> KeyedTable:
    table = KeyedTable()
    for claim in claims:
        table = join(table, deduplicate(claim), tombstones=True)
        arrived = [each for other in claims[: claims.index(claim) + 1] for each in other]
        expected = apply_events({}, arrived, columns=COLUMNS, soft=soft)
        assert show(table, columns=COLUMNS, soft=soft) == expected
    return table


def test_a_key_change_takes_absent_columns_from_older_events_of_its_claim() -> None:
    table = joined([event("i", 1, 1, a=1, b=2), *move(2, (1,), (2,), b=3), event("u", 3, 2, a=4)])
    assert show(table, columns=COLUMNS) == {(2,): Row(version=version(3), values={"a": 4, "b": 3})}


def test_a_chain_of_key_changes_takes_absent_columns_from_the_table() -> None:
    table = joined([event("i", 1, 0, a=1, b=2)], [*move(2, (0,), (1,)), *move(3, (1,), (2,), b=9)])
    assert show(table, columns=COLUMNS) == {(2,): Row(version=version(3), values={"a": 1, "b": 9})}


def test_three_rows_pass_their_ids_round() -> None:
    start = [event("i", number, number, a=number, b=0) for number in (1, 2, 3)]
    moves = [move(4, (3,), (9,)), move(5, (2,), (3,)), move(6, (1,), (2,)), move(7, (9,), (1,))]
    table = joined(start, *moves)
    assert {id_: row.values["a"] for id_, row in show(table, columns=COLUMNS).items()} == {(1,): 3, (2,): 1, (3,): 2}


@pytest.mark.parametrize("first", [0, 1])
def test_the_halves_of_a_key_change_may_come_in_either_order(first: int) -> None:
    halves = move(2, (1,), (2,), b=3)
    table = joined([event("i", 1, 1, a=1, b=2)], [halves[first]], [halves[1 - first]])
    assert show(table, columns=COLUMNS) == {(2,): Row(version=version(2), values={"a": 1, "b": 3})}


def test_a_tombstone_remembers_what_its_last_life_was_told_and_no_more() -> None:
    old_half, new_half = move(4, (1,), (2,))
    lives = [event("i", 1, 1, a=1, b=1), event("d", 2, 1), event("u", 3, 1, a=3)]
    table = joined(lives, [old_half], [new_half])
    assert show(table, columns=COLUMNS) == {(2,): Row(version=version(4), values={"a": 3}, incomplete=True)}


def test_a_key_change_of_a_row_that_nobody_knows_waits_for_what_it_left_absent() -> None:
    table = joined(move(2, (1,), (2,), a=1), [event("u", 3, 2, b=2)])
    assert show(table, columns=COLUMNS) == {(2,): Row(version=version(3), values={"a": 1, "b": 2})}


def test_a_key_change_takes_nothing_from_before_a_truncate() -> None:
    table = joined([event("i", 1, 1, a=1, b=1)], [event("t", 2)], move(3, (1,), (2,), a=3))
    assert show(table, columns=COLUMNS) == {(2,): Row(version=version(3), values={"a": 3}, incomplete=True)}


def test_a_key_change_delivered_again_changes_nothing_after_its_old_id_lives_again() -> None:
    change = move(2, (1,), (2,), b=3)
    table = joined([event("i", 1, 1, a=1, b=2), *change, event("i", 4, 1, a=7, b=7)], [*change, event("t", 0)])
    assert show(table, columns=COLUMNS)[2,] == Row(version=version(2), values={"a": 1, "b": 3})


def test_a_key_change_delivered_again_with_a_part_of_its_past_changes_nothing() -> None:
    first = [event("i", 1, 2, a=2, b=2), event("i", 1, 1, a=1, b=1), event("d", 2, 1)]
    change = move(4, (1,), (2,))
    table = joined([*first, *change, event("i", 5, 1, a=5, b=5)], [first[1], *change])
    assert show(table, columns=COLUMNS)[2,] == Row(version=version(4), values={"a": 2, "b": 2})


def test_a_key_change_delivered_again_after_a_truncate_changes_nothing() -> None:
    change = move(3, (1,), (2,), b=3)
    table = joined([event("i", 1, 1, a=1, b=1), event("t", 2)], [*change[1:], event("t", 4)], change, soft=True)
    flagged = show(table, columns=COLUMNS, soft=True)
    assert flagged[2,] == Row(version=version(4), values={"b": 3}, deleted=True)


def test_a_delete_then_an_insert_inherit_nothing() -> None:
    table = joined([event("i", 1, 1, a=1, b=2), event("d", 2, 1), event("u", 3, 1, a=5)])
    assert show(table, columns=COLUMNS) == {(1,): Row(version=version(3), values={"a": 5}, incomplete=True)}


def test_an_incomplete_row_is_completed_by_an_older_event_that_comes_late() -> None:
    table = joined([event("u", 3, 1, a=5)], [event("i", 1, 1, a=1, b=2)])
    assert show(table, columns=COLUMNS) == {(1,): Row(version=version(3), values={"a": 5, "b": 2})}


def test_a_column_that_the_events_schema_lacks_is_null_and_never_missing() -> None:
    early = Event(operation=Operation.UPDATE, version=version(1), id=(1,), values={"a": 1}, lacking=frozenset({"b"}))
    table = joined([early], [event("u", 2, 1, a=2)])
    assert show(table, columns=COLUMNS) == {(1,): Row(version=version(2), values={"a": 2, "b": None})}


def test_an_update_whose_schema_lacks_a_column_leaves_its_value() -> None:
    late = Event(operation=Operation.UPDATE, version=version(2), id=(1,), values={"a": 2}, lacking=frozenset({"b"}))
    table = joined([event("i", 1, 1, a=1, b=1)], [late])
    assert show(table, columns=COLUMNS) == {(1,): Row(version=version(2), values={"a": 2, "b": 1})}


def test_a_late_event_from_before_a_truncate_is_flagged_as_if_it_had_come_in_time() -> None:
    table = joined([event("t", 2)], [event("i", 1, 1, a=1, b=1)], soft=True)
    flagged = Row(version=version(2), values={"a": 1, "b": 1}, deleted=True)
    assert show(table, columns=COLUMNS, soft=True) == {(1,): flagged}


def test_dead_rows_are_purged_below_a_version_only() -> None:
    table = joined([event("d", 1, 1), event("d", 5, 5), event("i", 2, 2, a=1, b=1)])
    assert set(purge(table, below=version(5)).rows) == {(2,), (5,)}
    assert set(purge(table).rows) == {(2,)}


@pytest.mark.parametrize("first", [0, 1])
def test_on_a_tie_an_upsert_beats_a_delete_in_every_order_and_is_counted(first: int) -> None:
    tied = [at(7, "d"), at(7, "u", a=1, b=1)]
    outcome = deduplicate([tied[first], tied[1 - first]])
    assert outcome.ties == 1
    assert list(show(joined([tied[first]], [tied[1 - first]]), columns=COLUMNS)) == [(1,)]


@pytest.mark.parametrize("first", [0, 1])
def test_of_tied_upserts_the_greater_hash_wins_in_every_order(first: int) -> None:
    tied = [at(7, "u", a=1, b=1), at(7, "u", a=2, b=2)]
    winner = max(tied, key=lambda each: each.version)
    (row,) = show(joined([tied[first]], [tied[1 - first]]), columns=COLUMNS).values()
    assert row.values == winner.values


def test_the_same_event_twice_is_no_tie() -> None:
    assert deduplicate([at(7, "u", a=1), at(7, "u", a=1), event("u", 7, 2), event("d", 7, 2)]).ties == 0


def test_a_keyless_table_counts_copies() -> None:
    same = {"a": 1, "b": "x"}
    rows = join_keyless(
        KeylessRows(), net_copies([event("i", 1, **same), event("i", 2, **same), event("i", 2, **same)])
    )
    assert rows == {(("a", 1), ("b", "x")): 2}
    rows = join_keyless(rows, net_copies([event("d", 3, **same), event("i", 3, a=1, b="y")]))
    assert rows == {(("a", 1), ("b", "x")): 1, (("a", 1), ("b", "y")): 1}
    assert join_keyless(rows, net_copies([event("i", 4, **same), event("t", 5), event("i", 6, **same)])) == {
        (("a", 1), ("b", "x")): 1
    }


def at(sequence: int, operation: str, **values: object) -> Event:
    plain = event(operation, sequence, 1, **values)
    return Event(
        operation=plain.operation, version=tie_breaking_version(plain.version, plain), id=plain.id, values=plain.values
    )
