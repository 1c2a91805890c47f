"""Every state that processes and faults can reach, breadth first, each exactly once."""

import time
from array import array
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

Shared = TypeVar("Shared", bound=Hashable)
Local = tuple[Any, ...]

_BITS = 16
_MASK = (1 << _BITS) - 1
_PAIR = 2 * _BITS
_PAIR_MASK = (1 << _PAIR) - 1


@dataclass(frozen=True, slots=True)
class Move(Generic[Shared]):
    """One atomic step of a process, or of the world around them. What is a fault may never happen again."""

    words: str
    local: Local
    shared: Shared
    is_fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Generic[Shared]):
    """Two alike processes of each of two kinds, who meet only in what is shared.

    Alike processes bear no names, so that which of both is where makes no other state. `wrong`: what must never be.
    """

    first: Shared
    idle: tuple[Local, Local]
    kinds: tuple[Callable[[Local, Shared], list[Move[Shared]]], Callable[[Local, Shared], list[Move[Shared]]]]
    world: Callable[[Shared], list[Move[Shared]]]
    wrong: Callable[[Shared], str]
    is_good_end: Callable[[Shared], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterexample:
    """A shortest way to a state that is wrong, or from which no good end can be reached any more."""

    found: str
    trace: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """`is_complete`: there are no other states. `seconds` of processor time."""

    states: int
    steps: int
    good_ends: int
    is_complete: bool
    seconds: float
    counterexample: Counterexample | None


class Explorer(Generic[Shared]):
    """A state is one integer: the number of what is shared, and those of the four processes' own parts.

    What a process can do depends on its own part and on what is shared, so it is computed once for each pair.
    """

    def __init__(self, model: Model[Shared]) -> None:
        self._model = model
        self._shared: dict[Shared, int] = {}
        self._of_shared: list[Shared] = []
        self._good = bytearray()
        self._locals: tuple[dict[Local, int], dict[Local, int]] = ({}, {})
        self._of_local: tuple[list[Local], list[Local]] = ([], [])
        self._wrong: dict[int, str] = {}
        self._known: dict[int, tuple[int, ...]] = {}
        self._of_world: dict[int, tuple[int, ...]] = {}
        self._states = [self._shared_number(model.first) << 2 * _PAIR]
        for kind in (0, 1):
            self._local_number(kind, model.idle[kind])
        self._index = {self._states[0]: 0}
        self._parent = array("I", [0])
        self._edges = array("I")
        self._edges_end = array("Q")

    def explore(self, most_states: int) -> Explored:
        """Stops at the first wrong state. Whether a good end stays in reach is known only if no state was left out."""
        started = time.process_time()
        bad = self._walk(most_states)
        is_complete = bad is None and len(self._edges_end) == len(self._states)
        counterexample = None if bad is None else Counterexample(found=bad[1], trace=self._trace(bad[0]))
        if is_complete and (stuck := self._first_stuck()) is not None:
            counterexample = Counterexample(found="no good end can be reached any more", trace=self._trace(stuck))
        return Explored(
            states=len(self._states),
            steps=len(self._edges),
            good_ends=sum(self._good[state >> 2 * _PAIR] for state in self._states),
            is_complete=is_complete,
            seconds=time.process_time() - started,
            counterexample=counterexample,
        )

    def _walk(self, most_states: int) -> tuple[int, str] | None:
        """The place of the first wrong or dead state, and what is wrong with it. All the time goes here."""
        states, index, parent, edges, ends = self._states, self._index, self._parent, self._edges, self._edges_end
        at = 0
        while at < len(states) and len(states) < most_states:
            for moved in self._successors(states[at]):
                state = moved >> 1
                place = index.setdefault(state, len(states))
                if place == len(states):
                    states.append(state)
                    parent.append(at)
                    if self._wrong and state >> 2 * _PAIR in self._wrong:
                        return place, self._wrong[state >> 2 * _PAIR]
                if not moved & 1:
                    edges.append(place)
            if len(edges) == (ends[-1] if ends else 0) and not self._good[states[at] >> 2 * _PAIR]:
                return at, "nothing goes on any more"
            ends.append(len(edges))
            at += 1
        return None

    def _successors(self, state: int) -> list[int]:
        """Each shifted by the bit of a fault."""
        number, found, known = state >> 2 * _PAIR, [], self._known
        for kind, shift in ((0, 0), (1, _PAIR)):
            pair = state >> shift & _PAIR_MASK
            rest = (state ^ pair << shift) & ((1 << 2 * _PAIR) - 1)
            one, two = pair >> _BITS, pair & _MASK
            for mine, other in ((one, two), (two, one)) if one != two else ((one, two),):
                key = (number << _BITS | mine) << 1 | kind
                moves = known.get(key)
                if moves is None:
                    moves = known[key] = self._moves(kind, mine, number)
                for move in moves:
                    local = move >> 1 & _MASK
                    alike = local << _BITS | other if local < other else other << _BITS | local
                    found.append(((move >> _BITS + 1) << 2 * _PAIR | alike << shift | rest) << 1 | move & 1)
        moves = self._of_world.get(number)
        if moves is None:
            moves = self._of_world[number] = tuple(
                self._shared_number(move.shared) << 1 | move.is_fault
                for move in self._model.world(self._of_shared[number])
            )
        locals_of = state & ((1 << 2 * _PAIR) - 1)
        found += [((move >> 1) << 2 * _PAIR | locals_of) << 1 | move & 1 for move in moves]
        return found

    def _moves(self, kind: int, mine: int, number: int) -> tuple[int, ...]:
        moves = self._model.kinds[kind](self._of_local[kind][mine], self._of_shared[number])
        return tuple(
            (self._shared_number(move.shared) << _BITS | self._local_number(kind, move.local)) << 1 | move.is_fault
            for move in moves
        )

    def _shared_number(self, shared: Shared) -> int:
        number = self._shared.setdefault(shared, len(self._of_shared))
        if number == len(self._of_shared):
            self._of_shared.append(shared)
            self._good.append(self._model.is_good_end(shared))
            if wrong := self._model.wrong(shared):
                self._wrong[number] = wrong
        return number

    def _local_number(self, kind: int, local: Local) -> int:
        number = self._locals[kind].setdefault(local, len(self._of_local[kind]))
        if number == len(self._of_local[kind]):
            self._of_local[kind].append(local)
            if number > _MASK:
                raise OverflowError(f"more than {_MASK} local states")
        return number

    def _first_stuck(self) -> int | None:
        """Good ends spread backwards along all steps that are no faults, until nothing changes."""
        good = bytearray(self._good[state >> 2 * _PAIR] for state in self._states)
        edges, ends, changed = self._edges, self._edges_end, True
        while changed:
            changed = False
            for place in range(len(good) - 1, -1, -1):
                if not good[place]:
                    for step in range(ends[place - 1] if place else 0, ends[place]):
                        if good[edges[step]]:
                            good[place] = changed = True
                            break
        place = good.find(0)
        return None if place < 0 else place

    def _trace(self, place: int) -> tuple[str, ...]:
        places = [place]
        while places[-1]:
            places.append(self._parent[places[-1]])
        states = [self._states[found] for found in reversed(places)]
        return tuple(self._words(before, after) for before, after in pairwise(states))

    def _words(self, before: int, after: int) -> str:
        number, wanted = before >> 2 * _PAIR, self._of_shared[after >> 2 * _PAIR]
        for move, reached in self._told(before, number):
            if move.shared == wanted and reached == after & ((1 << 2 * _PAIR) - 1):
                return move.words
        raise LookupError("a state without a way to it")

    def _told(self, state: int, number: int) -> Iterator[tuple[Move[Shared], int]]:
        """Every move from a state, and the four processes' parts behind it."""
        shared, locals_of = self._of_shared[number], state & ((1 << 2 * _PAIR) - 1)
        for kind, shift in ((0, 0), (1, _PAIR)):
            pair = state >> shift & _PAIR_MASK
            for mine, other in ((pair >> _BITS, pair & _MASK), (pair & _MASK, pair >> _BITS)):
                for move in self._model.kinds[kind](self._of_local[kind][mine], shared):
                    low, high = sorted((self._locals[kind][move.local], other))
                    yield move, locals_of ^ pair << shift | (low << _BITS | high) << shift
        for move in self._model.world(shared):
            yield move, locals_of
