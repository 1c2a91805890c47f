"""Random logs with everything in them, and every order of arrival that docs/explanation/merge.md promises to bear.

A history is drawn as small numbers, so that hypothesis can shrink it; `history_of` plays them on a source table: each
becomes an insert, an update of some columns, a delete, a key change (chains, and swaps by a free id), a row read again,
or a truncate. Some histories have lost their beginning, some gain a column on the way, and where the stream has no
order of its own some events share a sequence.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import strategies as st

from cdc_pipeline.record import Operation, encode_version
from tests.support.reference.model import Event, Id

COLUMNS = ("a", "b", "c")
IDS = 4
SPARE = IDS
"""The id over which two rows swap theirs."""
_LONGEST = 16
_CODES = 1 << 14
_LATE_COLUMN = "c"
_REPEATED = 0.2

Transaction = list[Event]
Claims = list[list[Event]]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """`transactions`: what a cut never divides, in the order of the source; `ordered`: so are their versions."""

    transactions: list[Transaction]
    ordered: bool

    @property
    def events(self) -> list[Event]:
        return [event for transaction in self.transactions for event in transaction]


@dataclass
class _Source:
    """The source table while a history is played on it. `alive`: its ids."""

    ordered: bool
    number: int = 0
    sequence: int = 0
    lacking: frozenset[str] = frozenset()
    alive: set[int] = field(default_factory=set)

    def play(self, code: int) -> list[Transaction]:
        kind, id_, other, present, nulls = code % 16, code >> 4 & 3, code >> 6 & 3, code >> 8 & 7, code >> 11 & 7
        self.number += 1
        if self.ordered or nulls > 1 or self.number == 1:
            self.sequence = self.number
        if kind == 0:
            self.alive.clear()
            return [[self._at_its_version(Event(operation=Operation.TRUNCATE, version=""))]]
        if kind == 1:
            self.alive.add(id_)
            return [[self._event(Operation.INSERT, id_, present | nulls, nulls)]]
        if id_ not in self.alive:
            self.alive.add(id_)
            return [[self._event(Operation.INSERT, id_, 7, nulls)]]
        if kind < 4:
            self.alive.remove(id_)
            return [[self._event(Operation.DELETE, id_, 0, 0)]]
        if kind < 8 and other != id_:
            return self._moves(id_, other, present, nulls)
        return [[self._event(Operation.UPDATE, id_, present, nulls)]]

    def _moves(self, id_: int, other: int, present: int, nulls: int) -> list[Transaction]:
        if other not in self.alive:
            return [self._move(id_, other, present, nulls)]
        path = [(id_, SPARE), (other, id_), (SPARE, other)]
        moved = []
        for old, new in path:
            moved.append(self._move(old, new, present, nulls))
            self.number += 1
            self.sequence = self.number
        return moved

    def _move(self, old: int, new: int, present: int, nulls: int) -> Transaction:
        self.alive.discard(old)
        self.alive.add(new)
        moved = self._at_its_version(replace(self._event(Operation.MOVE, new, present, nulls), old_id=(old,)))
        return [Event(operation=Operation.DELETE, version=moved.version, id=(old,)), moved]

    def _event(self, operation: Operation, id_: int, present: int, nulls: int) -> Event:
        values: dict[str, object] = {
            name: None if nulls >> place & 1 else f"{name}{self.number}"
            for place, name in enumerate(COLUMNS)
            if present >> place & 1 and name not in self.lacking
        }
        return self._at_its_version(
            Event(operation=operation, version="", id=(id_,), values=values, lacking=self.lacking)
        )

    def _at_its_version(self, event: Event) -> Event:
        plain = encode_version(self.sequence, 1)
        return replace(event, version=plain if self.ordered else tie_breaking_version(plain, event))


def tie_breaking_version(sequence: str, event: Event) -> str:
    """The version of an event of a stream without an order: equal sequences go by rank, then by content."""
    if event.operation is Operation.TRUNCATE:
        return f"{sequence}~~"
    content = repr((event.operation, event.id, event.old_id, sorted(event.values.items()), sorted(event.lacking)))
    rank = 0 if event.operation is Operation.DELETE else 1
    return f"{sequence}~{rank}{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def history_of(codes: Iterable[int], *, ordered: bool, lost: int = 0, late_column_from: int = 0) -> History:
    """`lost`: how many of the first transactions nobody captured. `late_column_from`: where the last column appears."""
    source = _Source(ordered=ordered)
    transactions: list[Transaction] = []
    for place, code in enumerate(codes):
        source.lacking = frozenset({_LATE_COLUMN}) if place < late_column_from else frozenset()
        transactions += source.play(code)
    return History(transactions=transactions[lost:], ordered=ordered)


def histories(*, ordered: bool) -> st.SearchStrategy[History]:
    seldom = st.sampled_from((0, 0, 0, 1, 2, 4, 8))
    codes = st.lists(st.integers(0, _CODES - 1), min_size=1, max_size=_LONGEST)
    return st.builds(history_of, codes, ordered=st.just(ordered), lost=seldom, late_column_from=seldom)


def keyless_histories() -> st.SearchStrategy[History]:
    return st.lists(st.integers(0, _CODES - 1), min_size=1, max_size=_LONGEST).map(keyless_history_of)


def keyless_history_of(codes: Iterable[int]) -> History:
    """Few contents, many copies; an update is a delete and an insert at one version."""
    copies: Counter[int] = Counter()
    transactions = []
    for number, code in enumerate(codes, start=1):
        kind, content, other = code % 8, code >> 3 & 3, code >> 5 & 3
        version = encode_version(number, 1)
        if kind == 0:
            copies.clear()
            transactions.append([Event(operation=Operation.TRUNCATE, version=version)])
        elif kind < 4 or not copies[content]:
            copies[content] += 1
            transactions.append([_copy(Operation.INSERT, version, content)])
        else:
            copies[content] -= 1
            removed, added = _copy(Operation.DELETE, version, content), _copy(Operation.INSERT, version, other)
            copies[other] += kind > 5
            transactions.append([removed, added] if kind > 5 else [removed])
    return History(transactions=transactions, ordered=True)


def cut_anywhere(history: History, chance: Random) -> Claims:
    """In order, cut between transactions; inside a claim events come in any order, some of them twice."""
    places = sorted(chance.choices(range(len(history.transactions) + 1), k=chance.randint(0, 5)))
    bounds = zip([0, *places], [*places, len(history.transactions)], strict=True)
    claims = [[event for part in history.transactions[low:high] for event in part] for low, high in bounds]
    return [_shaken(claim, claim, chance) for claim in claims]


def arrive_anyhow(history: History, chance: Random) -> Claims:
    """Any event in any claim, also repeated; only what a move reads keeps its order (docs/explanation/merge.md)."""
    events = sorted(history.events, key=lambda event: (event.version, event.operation is Operation.DELETE))
    claims: Claims = [[] for _ in range(chance.randint(1, 6))]
    arrived: list[tuple[Event, int]] = []
    for event in events:
        earliest = max((place for other, place in arrived if _waits_for(event, other, events)), default=0)
        place = chance.randint(earliest, len(claims) - 1)
        claims[place].append(event)
        arrived.append((event, place))
    seen: list[Event] = []
    for place, claim in enumerate(claims):
        seen += claim
        claims[place] = _shaken(claim, seen, chance)
    return claims


def _waits_for(event: Event, older: Event, events: list[Event]) -> bool:
    """Both halves of a key change wait for what is older of the old id, and what is newer of it waits for the move."""
    if older.version == event.version:
        return False
    subjects: list[Id] = []
    if asks(event):
        subjects.append(event.old_id)
    if event.operation is Operation.DELETE and any(asks(half) and half.version == event.version for half in events):
        subjects.append(event.id)
    if older.operation is Operation.TRUNCATE or older.id in subjects:
        return bool(subjects)
    return asks(older) and (event.operation is Operation.TRUNCATE or event.id == older.old_id)


def asks(event: Event) -> bool:
    """Whether it is a move that needs its old row."""
    return event.operation is Operation.MOVE and len(event.values) < len(COLUMNS)


def _shaken(claim: list[Event], repeatable: list[Event], chance: Random) -> list[Event]:
    shaken = claim + [event for event in repeatable if chance.random() < _REPEATED]
    chance.shuffle(shaken)
    return shaken


def _copy(operation: Operation, version: str, content: int) -> Event:
    return Event(operation=operation, version=version, values={"a": content, "b": f"b{content % 2}"})
