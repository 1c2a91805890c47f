"""Lines of several partitions are released where the transactions of their source are whole."""

from collections.abc import Sequence

import pytest

from cdc_pipeline.sources.debezium.one_line import Undecodable
from cdc_pipeline.sources.debezium.partition import Line
from cdc_pipeline.sources.debezium.transaction_records import transaction_name, transaction_record
from cdc_pipeline.sources.debezium.whole_transactions import MOST_ENDS, MOST_HELD_BYTES, WholeTransactions
from tests.support.transaction_lines import (
    MINUTE,
    begin_record,
    end_record,
    end_value,
    event_line,
    plain_line,
    position,
    record,
    shown,
)

A, B = 0, 1
COLLECTIONS = {"a": frozenset({A}), "b": frozenset({B})}


def whole(**positions: int) -> WholeTransactions:
    known = {A: positions.get("a", 0), B: positions.get("b", 0)}
    return WholeTransactions(collections=COLLECTIONS, positions=known)


def add(to: WholeTransactions, number: int, *lines: Line, size_bytes: int = 1) -> None:
    to.add(number, lines, size_bytes)


def events(*numbers: tuple[int, int]) -> Sequence[Line]:
    return [event_line(transaction, order) for transaction, order in numbers]


@pytest.mark.parametrize(
    ("text", "name"),
    [("571:53195829", "571"), ("24bc7850-2c16-11e6-a073-0242ac110002:3", None), ("0-1-5", None), ("25:0d08:02", None)],
    ids=["postgres", "mysql", "mariadb", "sql server"],
)
def test_only_the_id_of_postgres_is_cut_at_its_position(text: str, name: str | None) -> None:
    assert transaction_name(text) == (name or text)


@pytest.mark.parametrize(
    "value", [{"op": "c"}, {"status": "END"}, "text", {"status": "END", "id": "7", "data_collections": [{}]}]
)
def test_what_is_no_begin_and_no_end_is_refused(value: object) -> None:
    with pytest.raises(Undecodable):
        transaction_record(record(value, 0))


def test_a_record_may_have_a_schema_around_it() -> None:
    value = end_value(7, {"a": 2})
    assert transaction_record(record({"schema": {}, "payload": value}, 3)) == transaction_record(record(value, 3))
    assert transaction_record(record(None, 0)) is None


def test_a_transaction_waits_for_its_end_and_for_all_of_its_events() -> None:
    held = whole()
    add(held, A, *events((1, 1), (1, 2)))
    assert held.release() is None
    held.add_record(begin_record(1))
    held.add_record(end_record(1, place=1, a=2, b=1))
    assert held.release() is None
    add(held, B, *events((1, 3)))
    found = held.release()
    assert shown(found) == {A: ["1.1", "1.2"], B: ["1.3"]}
    assert found is not None
    assert (found.is_closed, found.offset, found.missed) == (True, 2, [])


def test_events_of_later_transactions_are_held_and_several_whole_ones_are_released_together() -> None:
    held = whole()
    add(held, A, *events((1, 1), (2, 1), (3, 1)))
    held.add_record(end_record(1, place=0, a=1))
    held.add_record(end_record(2, place=1, a=1))
    held.add_record(end_record(3, place=2, a=1, b=1))
    found = held.release()
    assert shown(found) == {A: ["1.1", "2.1"]}
    assert found is not None
    assert found.offset == 2


def test_each_second_is_released_by_itself() -> None:
    held = whole()
    add(held, A, *events((1, 1), (2, 1), (3, 1)))
    for number, second in ((1, 7), (2, 7), (3, 8)):
        held.add_record(end_record(number, second=second, a=1))
    assert [shown(held.release()) for _ in range(3)] == [{A: ["1.1", "2.1"]}, {A: ["3.1"]}, {}]


def test_a_table_that_is_not_read_is_not_waited_for() -> None:
    held = whole()
    add(held, A, *events((1, 1)))
    held.add_record(end_record(1, a=1, other=5))
    assert shown(held.release()) == {A: ["1.1"]}


def test_lines_without_a_transaction_belong_to_the_one_before_them_or_pass() -> None:
    held = whole()
    add(held, A, plain_line(), *events((1, 1)), plain_line())
    assert shown(held.release()) == {A: ["-"]}
    held.add_record(end_record(1, a=1))
    assert shown(held.release()) == {A: ["1.1", "-"]}
    add(held, A, plain_line())
    assert shown(held.release()) == {A: ["-"]}


def test_events_that_were_sent_twice_are_counted_once() -> None:
    held = whole()
    add(held, A, *events((1, 1), (1, 1)))
    held.add_record(end_record(1, a=2))
    assert held.release() is None
    add(held, A, *events((1, 2)))
    assert shown(held.release()) == {A: ["1.1", "1.1", "1.2"]}


def test_a_repeated_transaction_passes_but_no_boundary_shows_its_old_rows() -> None:
    held = whole()
    add(held, A, *events((1, 1), (2, 1)))
    add(held, B, *events((1, 2)))
    for record_ in (end_record(1, a=1, b=1), end_record(2, a=1)):
        held.add_record(record_)
    assert shown(held.release()) == {A: ["1.1", "2.1"], B: ["1.2"]}
    add(held, A, *events((1, 1)))
    held.add_record(begin_record(1))
    held.add_record(end_record(1, place=5, a=1, b=1))
    found = held.release()
    assert shown(found) == {A: ["1.1"]}
    assert found is not None
    assert (found.is_closed, found.missed) == (False, [])
    add(held, A, *events((2, 1)))
    held.add_record(end_record(2, place=6, a=1))
    found = held.release()
    assert shown(found) == {A: ["2.1"]}
    assert found is not None
    assert (found.is_closed, found.offset) == (True, 7)


def test_a_transaction_that_was_registered_before_a_restart_passes() -> None:
    held = whole(a=position(2, 1), b=position(1, 2))
    held.add_record(end_record(1, place=4, a=1, b=1))
    assert held.release() is None
    add(held, A, *events((1, 1), (2, 1)))
    found = held.release()
    assert shown(found) == {A: ["1.1", "2.1"]}
    assert found is not None
    assert (found.is_closed, found.offset, found.missed) == (True, 5, [])


def test_events_that_lack_are_given_up_once_their_partition_shows_later_ones() -> None:
    held = whole()
    add(held, A, *events((1, 1)))
    held.add_record(end_record(1, a=1, b=1))
    assert held.release() is None
    add(held, B, *events((2, 1)))
    found = held.release()
    assert shown(found) == {A: ["1.1"]}
    assert found is not None
    (missed,) = found.missed
    assert (missed.transaction, missed.found, missed.expected) == (
        "1",
        "1 events of the transaction 1",
        "2, as its END says",
    )


def test_events_that_lack_are_given_up_after_minutes_if_the_broker_has_no_more() -> None:
    held = whole()
    add(held, A, *events((1, 1)))
    held.add_record(end_record(1, a=1, b=1, written=MINUTE))
    held.add_record(end_record(2, a=1, written=5 * MINUTE))
    assert (held.release(), held.asks_for) == (None, None)
    held.add_record(end_record(3, a=1, written=6 * MINUTE))
    assert held.release() is None
    assert held.asks_for is not None
    held.reached_ends(held.asks_for)
    found = held.release()
    assert shown(found) == {A: ["1.1"]}
    assert found is not None
    assert [missed.transaction for missed in found.missed] == ["1"]
    add(held, B, *events((1, 2)))
    assert shown(held.release()) == {B: ["1.2"]}, "what comes after all is not lost"


def test_nothing_is_given_up_while_the_transaction_topic_stands_still() -> None:
    held = whole()
    add(held, A, event_line(1, 1, written=0))
    held.add_record(end_record(1, a=1, b=1, written=0))
    assert (held.release(), held.asks_for) == (None, None)
    assert held.waits_for() == ("1 events of the transaction 1", "2, as its END says")


def test_lines_without_an_end_are_released_with_the_transaction_after_them() -> None:
    held = whole()
    add(held, A, *events((1, 1), (2, 1)))
    held.add_record(end_record(2, a=1))
    found = held.release()
    assert shown(found) == {A: ["1.1", "2.1"]}
    assert found is not None
    assert [missed.transaction for missed in found.missed] == ["1"]


def test_lines_without_an_end_and_without_positions_are_released_after_minutes() -> None:
    held = whole()
    add(held, A, event_line(1, 1, written=MINUTE, is_exact=False))
    held.add_record(end_record(2, other=1, written=7 * MINUTE))
    assert shown(held.release()) == {}
    assert held.release() is None
    assert held.asks_for is not None
    held.reached_ends(held.asks_for)
    found = held.release()
    assert shown(found) == {A: ["1.1"]}
    assert found is not None
    assert [missed.transaction for missed in found.missed] == ["1"]


def test_a_large_transaction_is_released_in_parts_before_its_end_and_no_boundary_parts_it() -> None:
    held = whole()
    held.add_record(begin_record(1))
    add(held, A, *events((1, 1), (1, 2)), size_bytes=MOST_HELD_BYTES)
    assert not held.is_full(A)
    found = held.release()
    assert shown(found) == {A: ["1.1", "1.2"]}
    assert found is not None
    assert not found.is_closed
    add(held, A, *events((1, 3), (2, 1)), size_bytes=MOST_HELD_BYTES)
    assert held.is_full(A)
    held.add_record(end_record(1, a=3, b=1))
    assert held.release() is None
    add(held, B, *events((1, 4)))
    found = held.release()
    assert shown(found) == {A: ["1.3"], B: ["1.4"]}
    assert found is not None
    assert found.is_closed


def test_a_transaction_in_which_the_connector_was_restarted_needs_the_ends_of_its_partitions() -> None:
    held = whole()
    held.add_record(begin_record(1))
    add(held, A, *events((1, 1)))
    held.add_record(begin_record(1))
    held.add_record(end_record(1, a=1))
    assert held.release() is None
    assert held.asks_for is not None
    add(held, A, event_line(1, 1))
    held.reached_ends(held.asks_for)
    assert shown(held.release()) == {A: ["1.1", "1.1"]}


def test_as_many_ends_as_are_kept_give_up_events_that_lack_however_close_in_time_they_are() -> None:
    """The events of the first transaction were not readable, so none shows its place; all other tables are unlisted."""
    held = whole()
    held.add_record(end_record(1, a=1))
    other = end_record(2, other=1)
    while held.has_room_for_records:
        held.add_record(other)
    assert held.release() is None
    assert held.asks_for is not None
    held.reached_ends(held.asks_for)
    found = held.release()
    assert found is not None
    assert [missed.transaction for missed in found.missed] == ["1"]
    assert held.has_room_for_records


def test_one_question_to_the_broker_gives_up_the_older_half_of_as_many_ends_as_are_kept() -> None:
    held = whole()
    for number in range(1, MOST_ENDS + 1):
        held.add_record(end_record(number, a=1, second=1))
    assert held.release() is None
    assert held.asks_for is not None
    held.reached_ends(held.asks_for)
    found = held.release()
    assert found is not None
    assert [missed.transaction for missed in found.missed] == [str(number) for number in range(1, MOST_ENDS // 2 + 1)]
    assert held.release() is None, "the newer half may still come"
    assert held.asks_for is None
