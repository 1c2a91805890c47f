"""The reference model by examples."""

from tests.support.lake import event, move, version
from tests.support.reference.model import Row, apply_events, visible

COLUMNS = ("name",)


def test_a_chain_of_key_changes_ends_at_the_last_id() -> None:
    events = [event("i", 1, 0, name="alice"), *move(2, (0,), (1,)), *move(3, (1,), (2,))]
    assert apply_events({}, events, columns=COLUMNS) == {(2,): Row(version=version(3), values={"name": "alice"})}


def test_two_rows_swap_their_ids() -> None:
    start = [event("i", 1, 1, name="one"), event("i", 2, 2, name="two")]
    swap = [*move(3, (1,), (9,)), *move(4, (2,), (1,)), *move(5, (9,), (2,))]
    table = apply_events({}, [*start, *swap], columns=COLUMNS)
    assert {id_: row.values["name"] for id_, row in table.items()} == {(1,): "two", (2,): "one"}


def test_a_late_older_event_loses() -> None:
    table = apply_events({}, [event("i", 5, 1, name="new")], columns=COLUMNS)
    assert apply_events(table, [event("u", 4, 1, name="old")], columns=COLUMNS) == table


def test_a_truncate_spares_what_is_newer() -> None:
    events = [event("i", 1, 1, name="a"), event("i", 3, 2, name="b"), event("t", 2)]
    assert set(apply_events({}, events, columns=COLUMNS)) == {(2,)}


def test_a_soft_delete_keeps_the_last_values_out_of_sight() -> None:
    table = apply_events({}, [event("i", 1, 1, name="a"), event("d", 2, 1)], columns=COLUMNS, soft=True)
    assert table == {(1,): Row(version=version(2), values={"name": "a"}, deleted=True)}
    assert visible(table) == {}
