"""An acceptance case through the kernel, or through the reference model: claims in, visible rows out."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from random import Random
from typing import Protocol

from tests.support.acceptance_cases import Case, CaseEvent, CaseTable, Row, events_of
from tests.support.reference.kernel import KeyedTable, deduplicate, join, join_keyless, net_copies, show
from tests.support.reference.model import Content, Event, KeylessRows, Table, apply_events, apply_to_keyless, visible

Claim = list[CaseEvent]
MOST_SLICINGS = 64


class CaseRun(Protocol):
    def apply(self, claim: Claim) -> None: ...

    def rows(self, table: str) -> list[Row]: ...


class KernelRun:
    """Claim by claim. `ties`: how many were counted."""

    def __init__(self, case: Case, *, tombstones: bool) -> None:
        self._case = case
        self._tombstones = tombstones
        self.keyed = {name: KeyedTable() for name, table in case.tables.items() if table.id}
        self._keyless = {name: KeylessRows() for name, table in case.tables.items() if not table.id}
        self.ties = 0

    def apply(self, claim: Claim) -> None:
        for name, keyed in self.keyed.items():
            outcome = deduplicate(_of(name, claim))
            self.ties += outcome.ties
            keeps = self._tombstones or self._case.tables[name].deletes == "soft"
            self.keyed[name] = join(keyed, outcome, tombstones=keeps)
        for name, rows in self._keyless.items():
            self._keyless[name] = join_keyless(rows, net_copies(_of(name, claim)))

    def rows(self, table: str) -> list[Row]:
        if table in self._keyless:
            return _copies(self._keyless[table])
        settings = self._case.tables[table]
        soft = settings.deletes == "soft"
        return _seen(settings, show(self.keyed[table], columns=settings.others, soft=soft))


class ModelRun:
    """Everything that has arrived, each time from the start."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._arrived: list[CaseEvent] = []

    def apply(self, claim: Claim) -> None:
        self._arrived += claim

    def rows(self, table: str) -> list[Row]:
        settings, events = self._case.tables[table], _of(table, self._arrived)
        if not settings.id:
            return _copies(
                apply_to_keyless(KeylessRows(), {(event.version, event.operation): event for event in events}.values())
            )
        soft = settings.deletes == "soft"
        return _seen(settings, apply_events({}, events, columns=settings.others, soft=soft))


def ordered_rows(rows: Sequence[Row]) -> list[Row]:
    """So that two lists of the same rows are equal."""
    return sorted(rows, key=lambda row: repr(sorted(row.items())))


def transactions_of(case: Case) -> list[Claim]:
    return [[made for change in part for made in events_of(case, change)] for part in case.transactions]


def slicings(parts: int, most: int = MOST_SLICINGS) -> Iterator[tuple[int, ...]]:
    """Every way to cut so many parts in their order, as the ends of the claims; a sample where there are too many."""
    places = range(1, parts)
    if 1 << len(places) <= most:
        for count in range(len(places) + 1):
            yield from ((*cuts, parts) for cuts in combinations(places, count))
        return
    chance = Random(parts)
    yield (parts,)
    yield (*places, parts)
    for _ in range(most - 2):
        yield (*(place for place in places if chance.random() < chance.choice((0.2, 0.5, 0.8))), parts)


def cut(transactions: Sequence[Claim], ends: Sequence[int]) -> Iterator[tuple[int, Claim]]:
    """(how many transactions have passed, the claim that ends there)"""
    for start, end in zip((0, *ends), ends, strict=False):
        yield end, [event for part in transactions[start:end] for event in part]


def shuffled(case: Case, chance: Random) -> list[Claim]:
    """Arrival across stream partitions in any order; where the stream is ordered, each of them keeps its own."""
    waiting: dict[int, list[CaseEvent]] = {}
    for place, event in enumerate(event for part in transactions_of(case) for event in part):
        waiting.setdefault(event.partition if case.ordered else place, []).append(event)
    claims: list[Claim] = [[]]
    while waiting:
        source = chance.choice(list(waiting))
        claims[-1].append(waiting[source].pop(0))
        if not waiting[source]:
            del waiting[source]
        if chance.random() < chance.choice((0.1, 0.9)):
            claims.append([])
    return claims


def _of(table: str, events: Sequence[CaseEvent]) -> list[Event]:
    return [each.event for each in events if each.table == table]


def _copies(rows: KeylessRows) -> list[Row]:
    return [_row(content) for content, copies in rows.items() for _ in range(copies)]


def _row(content: Content) -> Row:
    return dict(content)


def _seen(settings: CaseTable, table: Table) -> list[Row]:
    return [dict(zip(settings.id, id_, strict=True)) | row.values for id_, row in visible(table).items()]
