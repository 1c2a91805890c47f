"""Boundaries over topics and their partitions have whole transactions, whoever dies and whatever is sent twice."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from cdc_pipeline.errors import LeaseBusy, SourceError
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.steps import OnStep, no_step
from cdc_pipeline.wiring import Pipeline
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.support.boundaries import tables_at_boundaries
from tests.support.event_files import NOBODY_LISTENS
from tests.support.kafka import TopicFeed
from tests.support.pipelines import opened_pipeline
from tests.support.transaction_lines import begin_value, end_value, event_value

pytestmark = pytest.mark.kafka

ORDERS, ITEMS = "public.orders", "public.items"
IDS = {TableName.parse(f"shop.{table}"): "id" for table in (ORDERS, ITEMS)}
TABLES = tuple({"name": name, "id": ["id"], "columns": {"id": "int", "note": "text"}} for name in (ORDERS, ITEMS))
PARTITIONS = 2
Place = tuple[str, int]
"""A table, and a partition of its topic."""


@dataclass(slots=True, kw_only=True)
class Bank:
    """Moves amounts between rows of two tables, so that all rows together are 0 after every transaction.

    What is to be written waits in `queues`, by topic and partition, until `flush`.
    """

    feed: TopicFeed
    chance: Random = field(default_factory=lambda: Random(3))
    amounts: dict[tuple[str, int], int] = field(default_factory=dict)
    history: list[list[tuple[str, int, int]]] = field(default_factory=list)
    queues: dict[Place, list[Any]] = field(default_factory=dict)

    def transfer(self) -> int:
        """Adds a transaction that changes a row of each table, and returns its number."""
        amount = self.chance.randint(1, 99)
        changed = []
        for table, change in ((ORDERS, amount), (ITEMS, -amount)):
            id_ = self.chance.randint(0, 9)
            self.amounts[table, id_] = self.amounts.get((table, id_), 0) + change
            changed.append((table, id_, self.amounts[table, id_]))
        self.history.append(changed)
        return len(self.history)

    def send(self, number: int, *, parts: Sequence[str] = ("begin", ORDERS, ITEMS, "end")) -> None:
        """Queues the records of a transaction, or some of them."""
        for part in parts:
            if part == "begin":
                self.queues.setdefault(("transaction", 0), []).append(begin_value(number))
            elif part == "end":
                ended = end_value(number, {ORDERS: 1, ITEMS: 1, "public.others": 7}, second=number)
                self.queues.setdefault(("transaction", 0), []).append(ended)
        for order, (table, id_, amount) in enumerate(self.history[number - 1], 1):
            if table in parts:
                event = event_of(number, order, table, {"id": id_, "note": str(amount)})
                self.queues.setdefault((table, id_ % PARTITIONS), []).append(event)

    def flush(self) -> None:
        for (table, partition), values in self.queues.items():
            self.feed.topics.write(self.feed.topic(table), *values, partition=partition)
        self.queues = {}

    def sums(self) -> list[int]:
        """The sum of all rows at each boundary."""
        with opened(self.feed) as pipeline:
            return [
                sum(int(row["note"]) for rows in tables.values() for row in rows.values())
                for tables in tables_at_boundaries(pipeline, IDS)
            ]

    def is_in_the_lake(self) -> bool:
        found = {(table, id_): int(note) for table in (ORDERS, ITEMS) for id_, note in self.feed.notes(table).items()}
        return found == self.amounts


@contextmanager
def opened(feed: TopicFeed, on_step: OnStep = no_step) -> Iterator[Pipeline]:
    settings = Settings.model_validate(feed.document | {"folder": feed.folder})
    with opened_pipeline(settings, store_url=feed.store_url, spark_url=NOBODY_LISTENS, on_step=on_step) as pipeline:
        yield pipeline


def event_of(transaction: int, order: int, table: str, row: Mapping[str, object]) -> dict[str, Any]:
    event = event_value(transaction, order)
    schema, name = table.split(".")
    source = {"connector": "postgresql", "db": "shop", "schema": schema, "table": name}
    time = {"ts_ms": 1_700_000_000_000 + transaction}
    return event | {"source": event["source"] | source | time, "before": None, "after": row}


@pytest.fixture
def feed(tmp_path: Path, store_url: str, kafka: str) -> TopicFeed:
    """Two topics with two partitions each, and the transaction topic."""
    feed = TopicFeed(folder=tmp_path, store_url=store_url, servers=kafka, tables=TABLES)
    for table in (ORDERS, ITEMS):
        feed.create(table, partitions=PARTITIONS)
    feed.create("transaction")
    return replace(feed, source={"transactions": feed.topic("transaction"), "slice_rows": 5})


@pytest.fixture
def bank(feed: TopicFeed) -> Bank:
    return Bank(feed=feed)


def all_zero(sums: Sequence[int]) -> bool:
    return bool(sums) and set(sums) == {0}


def offsets(feed: TopicFeed) -> Mapping[str, int]:
    return {row["partition"]: int(row["next_offset"], 16) for row in feed.shown("partitions")}


def test_a_boundary_has_all_of_a_transaction_or_nothing_of_it(feed: TopicFeed, bank: Bank) -> None:
    bank.send(bank.transfer())
    second = bank.transfer()
    bank.send(second, parts=("begin", ORDERS))
    bank.flush()
    feed.consume()
    assert all_zero(bank.sums())
    assert not bank.is_in_the_lake()
    bank.send(second, parts=(ITEMS,))
    bank.flush()
    feed.go_on()
    assert not bank.is_in_the_lake(), "its END is not there yet"
    bank.send(second, parts=("end",))
    bank.flush()
    feed.go_on()
    assert all_zero(bank.sums())
    assert bank.is_in_the_lake()
    assert offsets(feed)[f"{feed.topic('transaction')} [0]"] == 4


def test_without_the_topic_a_boundary_may_have_a_half(feed: TopicFeed) -> None:
    bank = Bank(feed=replace(feed, source={"slice_rows": 5}))
    bank.send(bank.transfer(), parts=(ORDERS,))
    bank.flush()
    bank.feed.consume()
    assert not all_zero(bank.sums())


def test_what_is_sent_twice_shows_in_no_boundary(feed: TopicFeed, bank: Bank) -> None:
    """The connector died before it noted what it had sent: it sends again, and begins with an older transaction."""
    for _ in range(20):
        bank.send(bank.transfer())
    bank.flush()
    feed.consume()
    for number in range(15, 19):
        bank.send(number)
    bank.flush()
    feed.go_on()
    for number in range(19, 21):
        bank.send(number)
    for _ in range(10):
        bank.send(bank.transfer())
    bank.flush()
    feed.go_on()
    sums = bank.sums()
    assert all_zero(sums)
    assert len(sums) > 5
    assert bank.is_in_the_lake()


def test_a_consumer_that_dies_at_any_step_registers_whole_transactions(feed: TopicFeed, bank: Bank) -> None:
    feed.set_up()

    def write() -> None:
        """Ten transactions, the last one without its END and a half of its rows, and the rest of the last round's."""
        if bank.history:
            bank.send(len(bank.history), parts=(ITEMS, "end"))
        for _ in range(9):
            bank.send(bank.transfer())
        bank.send(bank.transfer(), parts=("begin", ORDERS))
        bank.flush()

    write()
    undisturbed = Failpoint()
    with opened(feed, undisturbed) as pipeline:
        pipeline.consumer_runs().consume_until_idle()
    sites = {(site.name, site.moment): site for site in reversed(undisturbed.recorded)}
    for site in sites.values():
        write()
        dies(feed, site)
    bank.send(len(bank.history), parts=(ITEMS, "end"))
    bank.flush()
    feed.go_on()
    sums = bank.sums()
    assert all_zero(sums)
    assert len(sums) > len(sites)
    assert bank.is_in_the_lake()


def dies(feed: TopicFeed, site: Site) -> None:
    with pytest.raises(Crash), opened(feed, Failpoint(site)) as pipeline:
        pipeline.consumer_runs().consume_until_idle()


def test_a_large_transaction_is_registered_whole(feed: TopicFeed, bank: Bank) -> None:
    """Five thousand events of a kilobyte in each table: five times what a partition holds."""
    count = 5_000
    feed.set_up()
    for table, first in ((ORDERS, 1), (ITEMS, count + 1)):
        for number in range(count):
            event = event_of(1, first + number, table, {"id": number, "note": "x" * 1_000})
            bank.queues.setdefault((table, number % PARTITIONS), []).append(event)
    bank.queues["transaction", 0] = [begin_value(1)]
    bank.flush()
    feed.go_on()
    assert feed.rows(ORDERS) == feed.rows(ITEMS) == []
    bank.queues["transaction", 0] = [end_value(1, {ORDERS: count, ITEMS: count})]
    bank.flush()
    feed.go_on()
    assert len(feed.rows(ORDERS)) == len(feed.rows(ITEMS)) == count
    with opened(feed) as pipeline:
        (tables,) = [tables for tables in tables_at_boundaries(pipeline, IDS) if any(rows for rows in tables.values())]
    assert [len(rows) for rows in tables.values()] == [count, count]


def test_snapshot_rows_and_records_without_a_transaction_are_not_held(feed: TopicFeed) -> None:
    feed.write(ORDERS, 1, "read", operation="r")
    feed.topics.write(feed.topic(ORDERS), None, key={"id": 1})
    feed.topics.write(feed.topic(ITEMS), b"{")
    feed.consume()
    assert feed.notes(ORDERS) == {1: "read"}
    assert len(feed.shown("quarantine")) == 1


def test_a_transaction_topic_that_is_missing_or_has_several_partitions_is_refused(feed: TopicFeed) -> None:
    missing = replace(feed, source={"transactions": f"{feed.prefix}.none"})
    with pytest.raises(SourceError, match=f"the cluster has no topic {feed.prefix}.none"):
        missing.set_up()
    feed.topics.grow(feed.topic("transaction"), partitions=2)
    with pytest.raises(SourceError, match=r"\.transaction has 2 partitions") as refused:
        feed.set_up()
    assert "provide.transaction.metadata" in refused.value.remedy


def test_nothing_is_removed_while_a_consumer_reads(feed: TopicFeed, bank: Bank) -> None:
    bank.send(bank.transfer())
    bank.flush()
    feed.consume()
    stop, beats = Event(), count()

    def remove() -> None:
        if next(beats) == 0:  # the stream is not open yet
            return
        stop.set()
        with replace(feed, tables=TABLES[:1]).opened() as rest, pytest.raises(LeaseBusy, match="a consumer reads"):
            rest.removal().remove_table(TableName.parse(f"shop.{ITEMS}"), with_lake=True)

    with feed.opened() as pipeline:
        pipeline.consumer_runs().consume(stop, remove)
    assert bank.is_in_the_lake()


def test_the_topic_may_be_named_later_and_left_out_again(feed: TopicFeed) -> None:
    bank = Bank(feed=replace(feed, source={}))
    for _ in range(3):
        bank.send(bank.transfer())
    bank.flush()
    bank.feed.consume()
    later = Bank(feed=feed, amounts=bank.amounts, history=bank.history)
    for _ in range(3):
        later.send(later.transfer())
    later.flush()
    feed.consume()
    later.send(later.transfer())
    later.flush()
    feed.go_on()
    assert later.is_in_the_lake()
    bank.send(bank.transfer(), parts=(ORDERS, ITEMS))
    bank.flush()
    bank.feed.go_on()
    assert bank.is_in_the_lake()


def test_ends_that_were_deleted_hold_no_events(feed: TopicFeed, bank: Bank) -> None:
    for _ in range(3):
        bank.send(bank.transfer())
    bank.flush()
    feed.topics.drop_before(feed.topic("transaction"), 0, 4)
    feed.consume()
    assert bank.is_in_the_lake()
