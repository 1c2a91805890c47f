"""Rows of a keyless table that are sent again count once; rows that share their place in the source's log all count."""

from typing import Any

import pytest

from cdc_pipeline.sources.debezium.memory import PartitionMemory
from tests.support.decoding import ORDERS, Decoding, orders, postgres

TABLE = orders(columns={"a": "int8"})


def copied(*values: int, orders_from: int | None = None) -> list[dict[str, Any]]:
    """Rows of one page that COPY wrote: all at one place. `orders_from`: total_order of the first."""
    return [
        postgres("c", 1000, after={"a": value}, order=None if orders_from is None else orders_from + number)
        for number, value in enumerate(values)
    ]


def values(reader: Decoding) -> list[int]:
    return [row["a"] for row in reader.rows]


def opened_again(reader: Decoding) -> Decoding:
    return Decoding(TABLE, registered=reader.registered)


@pytest.mark.parametrize("again", [False, True], ids=["in one run", "after a restart"])
def test_rows_at_one_place_that_are_read_in_two_parts_all_count(*, again: bool) -> None:
    first = Decoding(TABLE)
    first.send(*copied(1, 2))
    second = opened_again(first) if again else first
    second.send(*copied(1, 2, 3, 4))
    second.send(*copied(4), postgres("c", 900, after={"a": 9}), postgres("c", 2000, after={"a": 5}))
    assert values(first) + (values(second) if again else []) == [1, 2, 3, 4, 5]
    assert second.skipped == ["row that was sent twice"] * 4


def test_equal_rows_at_one_place_are_told_apart_by_their_numbers() -> None:
    first = Decoding(TABLE)
    first.send(*copied(7, 7, orders_from=3))
    second = opened_again(first)
    second.send(*copied(7, 7, 7, orders_from=3))
    assert values(first) + values(second) == [7, 7, 7]


def test_a_row_that_is_sent_again_under_a_lower_number_counts_once() -> None:
    """A connector that was started again in the middle of a transaction counts from there."""
    first = Decoding(TABLE)
    first.send(*copied(7, orders_from=3))
    first.send(*copied(7, orders_from=1))
    assert values(first) == [7]


def test_a_state_that_was_registered_without_rows_still_drops_what_was_read() -> None:
    place = 995 << 64 | 1000
    reader = Decoding(TABLE, registered={0: {ORDERS: f"{place:032x}"}})
    reader.send(*copied(1, 2), postgres("c", 2000, after={"a": 5}))
    assert values(reader) == [5]


def test_the_rows_of_one_place_are_kept_up_to_a_bound() -> None:
    reader = Decoding(TABLE)
    reader.send(*copied(*range(2_000)))
    assert len(reader.registered[0][ORDERS]) < 33_000
    reader.send(*copied(2_000))
    assert reader.registered[0][ORDERS] == f"{995 << 64 | 1000:032x}"
    assert PartitionMemory.decode(reader.registered[0][ORDERS]).rows is None


def test_a_partition_that_continues_others_knows_their_last_rows() -> None:
    parents = [PartitionMemory(position=9, rows={each: None}, order=number) for number, each in enumerate("ab")]
    child, later = PartitionMemory(), PartitionMemory(position=10)
    for parent in parents:
        child.follow(parent)
        later.follow(parent)
    assert (child.position, child.order, child.rows) == (9, 1, {"a": None, "b": None})
    assert (later.position, later.rows) == (10, {})
    assert parents[0].rows == {"a": None}


def test_equal_rows_of_a_snapshot_count_unless_one_is_sent_twice() -> None:
    """The snapshot of a table has one place and one time in `source`, and a time of its own for each row."""
    rows = [postgres("r", 1000, after={"a": 1}) | {"ts_ms": 1_700, "ts_us": 1_700_000 + number} for number in range(3)]
    for row in rows:
        row["source"]["snapshot"] = "true"
    reader = Decoding(TABLE)
    for row in (*rows, rows[-1]):
        reader.send(row)
    assert (values(reader), reader.skipped) == ([1, 1, 1], ["row that was sent twice"])


@pytest.mark.parametrize("again", [False, True], ids=["in one run", "after a restart"])
@pytest.mark.parametrize(("overlap", "first"), [([0, 0, 1, 1], ["0", "2"]), ([0, 1, 0, 1], ["0", "1"])], ids=str)
def test_what_is_sent_twice_waits_once_while_the_table_cannot_be_read(
    overlap: list[int], first: list[str], *, again: bool
) -> None:
    """Replayed, each line that waits has a version of its own, so that its row would count twice."""
    log = [postgres("c", 10, after={"a": 1}), postgres("u", 20, before={"a": 1}, after={"a": 2})]
    without_columns = Decoding(orders())
    for each in overlap:
        without_columns.send(log[each])
        if again:
            without_columns.restart()
    assert without_columns.skipped == ["row that was sent twice"] * 2
    waiting = [unfit for events in without_columns.events for unfit in events.unfit]
    assert [each.payload["_cdc_line_number"] for each in waiting] == first


def test_what_waits_is_not_applied_when_it_is_sent_again_once_the_table_can_be_read() -> None:
    row = postgres("c", 10, after={"a": 1})
    without_columns = Decoding(orders())
    without_columns.send(row)
    reader = opened_again(without_columns)
    reader.send(row, postgres("c", 20, after={"a": 2}))
    assert (values(reader), reader.skipped) == ([2], ["row that was sent twice"])


def test_rows_with_an_id_all_wait_while_their_table_cannot_be_read() -> None:
    """The order of their lines decides, so none of them counts twice."""
    reader = Decoding(orders(id=["a"]))
    reader.send(*[postgres("c", 10, after={"a": 1})] * 2)
    assert (reader.skipped, len(reader.refused)) == ([], 2)


def test_the_log_of_another_server_waits_while_its_table_cannot_be_read() -> None:
    """Its places are below those that were read, and it was not sent before."""
    place = {"connector": "mysql", "db": "shop", "schema": "public", "table": "orders", "pos": 4, "row": 0}
    reader = Decoding(orders())
    for server, file in ((1, "bin.000150"), (2, "bin.000003")):
        source = {**place, "server_id": server, "file": file}
        reader.send({"op": "c", "before": None, "after": {"a": server}, "source": source})
    assert (reader.skipped, len(reader.refused)) == ([], 2)
