"""The kernel: a claim's change events -> one outcome per id, and outcomes -> the table, claim by claim.

The algebra. What is known of an id is a handful of registers, each of which keeps the greatest version it was given:
`upsert` (the newest insert, update or move), `deletions` (the newest two deletes), and per column the newest event
that had a value for it, with that value, and the newest update whose schema lacked it. To join two states is to take
the greater of each register, and the greatest of a set does not depend on the order, the grouping or the repetition of
its members. So

    join(a, b) = join(b, a)    join(a, join(b, c)) = join(join(a, b), c)    join(a, a) = a

and the state of an id is the join of its events, however they were cut into claims and in whatever order those came.
A truncate is the same register once for the whole table. From the registers alone follows what a reader sees:

    dead      deletion >= upsert, the deletion being the greater of the id's own and the table's truncate
    known     a column whose value is newer than the deletion; NULL if only an update newer than it lacked the column
    visible   neither dead nor with an unknown column; alive with an unknown column is incomplete, and waits

Three things are not registers. A *move* asks what the old id's row was just before it: that is answered when its claim
is joined, from older events of the claim and the table. *Tombstones*: where events of one id come in order, dead rows
may be dropped, since nothing older can follow. A *keyless table* is a multiset, whose join is addition: each claim
counts once.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce

from cdc_pipeline.record import Operation
from tests.support.reference.model import Content, Event, Id, KeylessRows, Row

_TIE_MARK = "~"
"""Parts the sequence from what breaks its ties, in versions of streams without an order of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    version: str
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class RowState:
    """All that is known of one id. `deletions`: the newest two, oldest first: before the last one, the other counts."""

    upsert: str = ""
    deletions: tuple[str, ...] = ()
    known: dict[str, Register] = field(default_factory=dict)
    lacked: dict[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        return max(self.upsert, *self.deletions, "")

    def values_above(self, deletion: str) -> dict[str, object]:
        """The known columns, had the id been deleted at this version last."""
        lacking = dict.fromkeys(name for name, version in self.lacked.items() if version > deletion)
        return lacking | {name: found.value for name, found in self.known.items() if found.version > deletion}


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The new half of a key change: it asks for the columns of the old id's row that it does not hold itself.

    `origin`: what older events of the same claim say of the old id.
    """

    version: str
    id: Id
    old_id: Id
    present: frozenset[str]
    origin: RowState


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a claim means. `moves`: oldest first. `ties`: how often different events of one id share a sequence."""

    states: dict[Id, RowState]
    moves: tuple[Move, ...]
    truncated_at: str
    ties: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedTable:
    rows: dict[Id, RowState] = field(default_factory=dict)
    truncated_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeylessOutcome:
    """`emptied`: by a truncate, before `net` counts. `net`: copies added or removed per content."""

    emptied: bool
    net: dict[Content, int]


_NOTHING = RowState()


def join_states(one: RowState, other: RowState) -> RowState:
    known = dict(one.known)
    for name, register in other.known.items():
        if name not in known or register.version > known[name].version:
            known[name] = register
    lacked = {name: max(one.lacked.get(name, ""), other.lacked.get(name, "")) for name in one.lacked | other.lacked}
    return RowState(
        upsert=max(one.upsert, other.upsert),
        deletions=tuple(sorted({*one.deletions, *other.deletions})[-2:]),
        known=known,
        lacked=lacked,
    )


def deduplicate(events: Iterable[Event]) -> Outcome:
    """Events of one claim, in any order and repeated at will, become one state per id."""
    per_id: dict[Id, list[Event]] = defaultdict(list)
    truncates = []
    for event in events:
        if event.operation is Operation.TRUNCATE:
            truncates.append(event.version)
        else:
            per_id[event.id].append(event)
    changes = [event for found in per_id.values() for event in found]
    moves = {(event.version, event.id): event for event in changes if event.operation is Operation.MOVE}
    return Outcome(
        states={id_: _joined(map(_state, found)) for id_, found in per_id.items()},
        moves=tuple(_move(event, per_id.get(event.old_id, []), truncates) for _, event in sorted(moves.items())),
        truncated_at=max(truncates, default=""),
        ties=_count_ties(changes),
    )


def join(table: KeyedTable, outcome: Outcome, *, tombstones: bool = True) -> KeyedTable:
    """The table after the claim. Without tombstones dead rows go: only where events of an id come in their order."""
    truncated_at = max(table.truncated_at, outcome.truncated_at)
    moved: dict[Id, list[RowState]] = defaultdict(list)
    for move in outcome.moves:
        moved[move.id].append(_resolved(move, table, moved[move.old_id]))
    rows = dict(table.rows)
    for id_, state in outcome.states.items():
        rows[id_] = _joined([rows.get(id_, _NOTHING), state, *moved[id_]])
    joined = KeyedTable(rows=rows, truncated_at=truncated_at)
    return joined if tombstones else purge(joined)


def purge(table: KeyedTable, below: str | None = None) -> KeyedTable:
    """Without dead rows (those older than `below`, if given): nothing older than they are may come any more."""
    rows = {
        id_: state
        for id_, state in table.rows.items()
        if state.upsert > _deletion(table, state) or (below is not None and state.version >= below)
    }
    return KeyedTable(rows=rows, truncated_at=table.truncated_at)


def show(table: KeyedTable, *, columns: tuple[str, ...], soft: bool = False) -> dict[Id, Row]:
    """The table as the reference model has it. Where deletes are soft, dead rows are there, flagged."""
    rows = {}
    for id_, state in table.rows.items():
        deletion = _deletion(table, state)
        if state.upsert > deletion:
            values = state.values_above(deletion)
            rows[id_] = Row(version=state.upsert, values=values, incomplete=not values.keys() >= set(columns))
        elif soft and state.upsert:
            values = {name: found.value for name, found in state.known.items()}
            rows[id_] = Row(version=deletion, values=values, deleted=True)
    return rows


def net_copies(events: Iterable[Event]) -> KeylessOutcome:
    """The net change per content. An event that is there twice (one version, one content) counts once."""
    distinct: set[tuple[str, Operation, Content]] = set()
    truncates = []
    for event in events:
        if event.operation is Operation.TRUNCATE:
            truncates.append(event.version)
        else:
            distinct.add((event.version, event.operation, tuple(sorted(event.values.items()))))
    truncated_at = max(truncates, default="")
    net: Counter[Content] = Counter()
    for version, operation, content in distinct:
        if version > truncated_at:
            net[content] += 1 if operation is Operation.INSERT else -1
    return KeylessOutcome(emptied=bool(truncates), net={content: count for content, count in net.items() if count})


def join_keyless(rows: KeylessRows, outcome: KeylessOutcome) -> KeylessRows:
    """The rows after the claim; claims come in the order of their versions, each once."""
    result = KeylessRows() if outcome.emptied else rows.copy()
    result.update(outcome.net)
    return +result


def _joined(states: Iterable[RowState]) -> RowState:
    return reduce(join_states, states, _NOTHING)


def _state(event: Event) -> RowState:
    if event.operation is Operation.DELETE:
        return RowState(deletions=(event.version,))
    inserted = event.operation is Operation.INSERT
    values = dict.fromkeys(event.lacking) | event.values if inserted else event.values
    return RowState(
        upsert=event.version,
        known={name: Register(version=event.version, value=value) for name, value in values.items()},
        lacked={} if inserted else dict.fromkeys(event.lacking, event.version),
    )


def _move(event: Event, of_old_id: list[Event], truncates: list[str]) -> Move:
    older = [_state(other) for other in of_old_id if other.version < event.version]
    emptied = [RowState(deletions=(version,)) for version in truncates if version < event.version]
    return Move(
        version=event.version,
        id=event.id,
        old_id=event.old_id,
        present=frozenset(event.values),
        origin=_joined([*older, *emptied]),
    )


def _resolved(move: Move, table: KeyedTable, moved_to_old_id: list[RowState]) -> RowState:
    """What the move takes over. `moved_to_old_id`: what earlier moves of the claim took over to the old id.

    The table's row is older, or was deleted by this very key change. If it is newer, or a newer truncate is known, the
    move comes again.
    """
    row = table.rows.get(move.old_id, _NOTHING)
    if max(row.version, table.truncated_at) > move.version:
        return _NOTHING
    origin = _joined([row, move.origin, *moved_to_old_id])
    deletions = (*origin.deletions, table.truncated_at)
    before = max((version for version in deletions if version < move.version), default="")
    values = origin.values_above(before)
    taken = {name: value for name, value in values.items() if name not in move.present}
    return RowState(
        upsert=move.version,
        known={name: Register(version=move.version, value=value) for name, value in taken.items()},
    )


def _deletion(table: KeyedTable, state: RowState) -> str:
    return max(table.truncated_at, *state.deletions, "")


def _count_ties(changes: Iterable[Event]) -> int:
    versions: dict[tuple[Id, str], set[str]] = defaultdict(set)
    for event in changes:
        sequence, mark, _ = event.version.partition(_TIE_MARK)
        if mark:
            versions[event.id, sequence].add(event.version)
    return sum(len(found) > 1 for found in versions.values())
