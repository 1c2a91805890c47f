"""Random transactions over random partitions, sent by a connector that dies: each boundary is a prefix of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_pipeline.sources.debezium.held_lines import Release
from cdc_pipeline.sources.debezium.partition import Line
from cdc_pipeline.sources.debezium.transaction_records import exact_position
from cdc_pipeline.sources.debezium.whole_transactions import MOST_HELD_BYTES, ReadEnds, WholeTransactions
from tests.support.transaction_lines import MINUTE, begin_record, end_record, event_line, lines_in, plain_line

TOPIC = -1
BEGIN, TOMBSTONE, END = 0, -1, -2
"""What a record is, in place of the event's number in its transaction."""
PARTITIONS = 3
COLLECTIONS = {"a": frozenset({0}), "b": frozenset({1, 2})}
Sent = tuple[int, int, int]
"""Destination, transaction, and the number of the event in it, or what the record is."""
Event = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`transactions`: the partition of each event. `arrivals`: what the destinations have, in the order of arrival."""

    transactions: Sequence[Sequence[int]]
    arrivals: Sequence[Sent]
    is_exact: bool


def sent(transactions: Sequence[Sequence[int]], first: int, end: int) -> Iterator[Sent]:
    for number in range(first, end):
        yield TOPIC, number, BEGIN
        for order, partition in enumerate(transactions[number], 1):
            yield partition, number, order
            if order % 2:
                yield partition, number, TOMBSTONE
        yield TOPIC, number, END


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """The connector sends from a transaction on, dies, and begins again before the first record that was lost."""
    transactions = draw(st.lists(st.lists(st.integers(0, PARTITIONS - 1), max_size=4), min_size=1, max_size=6))
    is_exact = draw(st.booleans())
    arrivals: list[Sent] = []
    first = 0
    for _ in range(draw(st.integers(0, 3)) if is_exact else 0):
        end = draw(st.integers(first, len(transactions)))
        run = list(sent(transactions, first, end))
        run = run[: draw(st.integers(0, len(run)))]
        kept = {to: draw(st.integers(0, sum(each[0] == to for each in run))) for to in {each[0] for each in run}}
        arrived, lost = Counter[int](), len(transactions)
        queues: dict[int, list[Sent]] = {}
        for each in run:
            arrived[each[0]] += 1
            if arrived[each[0]] <= kept[each[0]]:
                queues.setdefault(each[0], []).append(each)
            else:
                lost = min(lost, each[1])
        arrivals += mixed(draw, queues)
        reached = min(lost, max((each[1] for each in run), default=first))
        first = draw(st.integers(first, max(first, reached)))
    last: dict[int, list[Sent]] = {}
    for each in sent(transactions, first, len(transactions)):
        last.setdefault(each[0], []).append(each)
    arrivals += mixed(draw, last)
    return Plan(transactions=transactions, arrivals=arrivals, is_exact=is_exact)


def mixed(draw: st.DrawFn, queues: dict[int, list[Sent]]) -> list[Sent]:
    """The records of all destinations in an order in which they may arrive: each destination keeps its own order."""
    order = draw(st.permutations([to for to, queue in queues.items() for _ in queue]))
    places = {to: iter(queue) for to, queue in queues.items()}
    return [next(places[to]) for to in order]


@dataclass(slots=True, kw_only=True)
class Reader:
    """Reads what has arrived so far, and checks what is released. `events`: those of closed releases, in order."""

    plan: Plan
    logs: dict[int, list[Sent]] = field(default_factory=lambda: {to: [] for to in (TOPIC, *range(PARTITIONS))})
    registered: dict[int, int] = field(default_factory=lambda: dict.fromkeys((TOPIC, *range(PARTITIONS)), 0))
    positions: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    read: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[Line]] = field(default_factory=dict)
    asked: tuple[ReadEnds, dict[int, int]] | None = None
    offset: int = 0
    whole: WholeTransactions = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A new process, at the last boundary."""
        self.whole = WholeTransactions(collections=COLLECTIONS, positions=self.positions)
        self.read, self.open, self.asked = dict(self.registered), {}, None
        self.offset = self.registered[TOPIC]

    def take(self, to: int, count: int, size_bytes: int) -> None:
        place = self.read[to]
        found = self.logs[to][place : place + count]
        if not found or (to != TOPIC and self.whole.is_full(to)):
            return
        self.read[to] += len(found)
        if to != TOPIC:
            self.whole.add(to, [self.line(each, place + number) for number, each in enumerate(found)], size_bytes)
            return
        for number, (_, transaction, kind) in enumerate(found, place):
            if kind == BEGIN:
                self.whole.add_record(begin_record(transaction, number))
                continue
            of = self.plan.transactions[transaction] if transaction < len(self.plan.transactions) else ()
            counts = {name: sum(each in of_table for each in of) for name, of_table in COLLECTIONS.items()}
            written = 0 if transaction < len(self.plan.transactions) else 60 * MINUTE
            self.whole.add_record(
                end_record(transaction, number, written=written, second=transaction // 2, other=3, **counts)
            )

    def line(self, sent_: Sent, place: int) -> Line:
        _, transaction, order = sent_
        if order == TOMBSTONE:
            return plain_line(place)
        return event_line(transaction, order, place, is_exact=self.plan.is_exact)

    def release(self) -> bool:
        found = self.whole.release()
        if found is not None:
            self.check(found)
            return True
        if self.asked is not None:
            short = [to for to, end in self.asked[1].items() if self.read[to] < end]
            if all(self.whole.is_full(to) for to in short):
                self.whole.reached_ends(self.asked[0], short)
                self.asked = None
                return True
        if self.asked is None and self.whole.asks_for is not None:
            self.asked = self.whole.asks_for, {to: len(self.logs[to]) for to in range(PARTITIONS)}
            return True
        return False

    def check(self, release: Release) -> None:
        for number, taken in release.taken.items():
            self.open.setdefault(number, []).extend(lines_in(taken))
        self.offset = self.offset if release.offset is None else release.offset
        if not release.is_closed:
            return
        self.registered[TOPIC] = self.offset
        for number, lines in self.open.items():
            places = [line.raw.place for line in lines]
            assert all(later == earlier + 1 for earlier, later in pairwise([self.registered[number] - 1, *places]))
            self.registered[number] += len(lines)
            shown = [exact_position(line.event) for line in lines if line.event is not None]
            self.positions[number] = max(self.positions[number], *shown, 0)
        self.open = {}
        self.check_boundary()

    def check_boundary(self) -> None:
        """What is registered is a prefix of the transactions, and each row is as the newest of them left it."""
        logs = {to: self.logs[to][: self.registered[to]] for to in range(PARTITIONS)}
        seen = {(each[1], each[2]) for log in logs.values() for each in log if each[2] > 0}
        count = max((transaction for transaction, _ in seen), default=-1) + 1
        expected = {
            (number, order)
            for number, of in enumerate(self.plan.transactions[:count])
            for order in range(1, len(of) + 1)
        }
        assert seen == expected
        for log in logs.values():
            events = [(each[1], each[2]) for each in log if each[2] > 0]
            assert not events or events[-1] == max(events), "a row is shown as it was before"


@settings(max_examples=200, deadline=None)
@given(plan=plans(), data=st.data())
def test_each_boundary_is_a_prefix_of_the_transactions_and_nothing_is_lost(plan: Plan, data: st.DataObject) -> None:
    reader = Reader(plan=plan)
    sizes = st.sampled_from([1, MOST_HELD_BYTES])
    for to, transaction, kind in plan.arrivals:
        reader.logs[to].append((to, transaction, kind))
        for _ in range(data.draw(st.integers(0, 2))):
            reader.take(data.draw(st.integers(TOPIC, PARTITIONS - 1)), data.draw(st.integers(1, 4)), data.draw(sizes))
            reader.release()
        if data.draw(st.integers(0, 9)) == 0:
            reader.begin()
    reader.logs[TOPIC].append((TOPIC, len(plan.transactions), END))
    is_moving = True
    while is_moving:
        before = dict(reader.read)
        for to in reader.logs:
            reader.take(to, 3, 1)
        is_moving = reader.release() or before != reader.read
    assert reader.registered == {to: len(log) for to, log in reader.logs.items()}
