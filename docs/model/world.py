"""What the protocol's processes share, the guards that can be taken from it, and what must always be true."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

FREE, HELD, EXPIRED = range(3)
NO_CLAIM = (0, 0)
DAMAGED = (98, 100)


class Guard(StrEnum):
    """What the protocol does so that nothing is lost or doubled; docs/explanation/model.md: what happens without."""

    OFFSET = "offset"
    ASSIGNMENT = "assignment"
    SKIP_REPEATED = "skip-repeated"
    FILES_FIRST = "files-first"
    SLICE_NAME = "slice-name"
    SLICE_ONCE = "slice-once"
    CUT_FILE = "cut-file"
    CUT_ONCE = "cut-once"
    ADOPTION = "adoption"
    CONFIRM_LAST = "confirm-last"
    LEASE = "lease"
    CLAIM_EPOCH = "claim-epoch"
    CLAIM_RECORDED = "claim-recorded"
    CLAIM_ID = "claim-id"
    CLAIM_OVERTAKEN = "claim-overtaken"
    CLAIM_NEXT = "claim-next"
    FILE_HASH = "file-hash"
    FENCE_READ = "fence-read"
    FENCE_IDS = "fence-ids"
    FENCE_CHECK = "fence-check"
    COMMIT_SKIP = "commit-skip"
    COMMIT_CONFLICT = "commit-conflict"
    COMMIT_ONCE = "commit-once"
    ROW_VERSION = "row-version"
    PROOF_IDS = "proof-ids"
    MARK_LAST = "mark-last"
    MARK_EPOCH = "mark-epoch"


class Fault(StrEnum):
    """What goes wrong, each as often as its budget allows, at any step of anybody."""

    CRASH = "crash"
    ZOMBIE = "zombie"  # a lease expires, or a second consumer takes the stream, while the owner lives on
    LOST_ANSWER = "lost-answer"  # it happened, but whoever asked for it does not know it and asks again
    FAILOVER = "failover"  # the metadata store goes back to what it was at some earlier time
    DAMAGE = "damage"  # a slice file is replaced; somebody restores it later


FAULTS = tuple(Fault)


class Cut(NamedTuple):
    """Events of [start, end). `begin`: the first that its slice files really hold."""

    start: int
    end: int
    begin: int

    @property
    def holds(self) -> tuple[int, int]:
        return self.begin, self.end

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


class Store(NamedTuple):
    """The metadata store. A cut's number is its place in `cuts`, from 1 on; `applied` holds one bit for each."""

    assignment: int = 0
    offset: int = 0
    cuts: tuple[Cut, ...] = ()
    applied: int = 0
    epoch: int = 0
    lease: int = FREE
    claim: tuple[int, int] = NO_CLAIM

    @property
    def all_applied(self) -> int:
        return (1 << len(self.cuts)) - 1


class Commit(NamedTuple):
    """One version of the lake's table: numbers first to last, what is recorded of them, and the events added."""

    first: int
    last: int
    cuts: tuple[Cut, ...]
    events: tuple[int, ...]


class SliceFile(NamedTuple):
    """`holds`: events from, to."""

    key: tuple[int, ...]
    holds: tuple[int, int]


class World(NamedTuple):
    """All that outlives a process. `parked`: no turns for the table while a file is damaged."""

    budget: tuple[int, ...]
    store: Store = Store()
    backup: tuple[Store, ...] = ()
    slot: int = 0
    is_read: bool = False
    files: tuple[SliceFile, ...] = ()
    cut_files: tuple[Cut, ...] = ()
    lake: tuple[Commit, ...] = ()
    parked: bool = False

    def allows(self, fault: Fault) -> bool:
        return self.budget[FAULTS.index(fault)] > 0

    def after(self, fault: Fault) -> "World":
        place = FAULTS.index(fault)
        return self._replace(budget=(*self.budget[:place], self.budget[place] - 1, *self.budget[place + 1 :]))

    def with_store(self, **changes: Any) -> "World":
        return self._replace(store=self.store._replace(**changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`partitions[n]` is the stream partition of event n; a cut takes at most `cut_events`, a claim `claim_cuts`.

    `only_silent`: a number given twice, a slot that is ahead and a table that stopped are fine: each raises an alarm.
    """

    partitions: tuple[int, ...] = (0, 1)
    cut_events: int = 2
    claim_cuts: int = 2
    faults: tuple[tuple[Fault, int], ...] = ()
    without: frozenset[Guard] = frozenset()
    only_silent: bool = False

    @property
    def end(self) -> int:
        return len(self.partitions)

    def has(self, guard: Guard) -> bool:
        return guard not in self.without

    def key(self, cut: Cut, partition: int) -> tuple[int, ...]:
        """What a slice file's name says; its end stands for the content's hash too."""
        return (cut.start, cut.end, partition) if self.has(Guard.SLICE_NAME) else (cut.start, partition)

    def parts(self, cut: Cut) -> list[int]:
        """Stream partitions that have events in the cut, and so a slice file."""
        return sorted({self.partitions[event] for event in range(cut.begin, cut.end)})

    def first_world(self) -> World:
        budget = dict(self.faults)
        return World(budget=tuple(budget.get(fault, 0) for fault in FAULTS))

    def wrong(self, world: World) -> str:
        """Holds in every state, however many faults there were."""
        store, held = world.store, events(world.lake)
        if held != tuple(range(len(held))):
            return f"the lake holds the events {list(held)}"
        for number, cut in () if self.only_silent else recorded(world.lake):
            if number <= len(store.cuts) and store.cuts[number - 1] != cut:
                return f"number {number} is {store.cuts[number - 1]} in the metadata store and {cut} in the lake"
        for place, cut in enumerate(store.cuts):
            if place and store.cuts[place - 1].end != cut.start:
                return f"the metadata store has {cut} behind {store.cuts[place - 1]}"
            if store.applied >> place & 1 and cut.end > len(held):
                return f"number {place + 1} is marked as applied, the lake ends before event {len(held)}"
        kept = self.end if self.only_silent else store.offset
        for cut in world.cut_files:
            kept = cut.end if cut.start == kept else kept
        return (
            f"the slot is confirmed up to event {world.slot}, kept are those before {kept}" if world.slot > kept else ""
        )

    def is_good_end(self, world: World) -> bool:
        """The lake holds the log, once, and the metadata store says so."""
        store = world.store
        is_whole = store.offset == self.end == len(events(world.lake))
        return self.only_silent or (is_whole and store.claim == NO_CLAIM and store.applied == store.all_applied)


def fence(lake: tuple[Commit, ...]) -> int:
    return lake[-1].last if lake else 0


def events(lake: tuple[Commit, ...]) -> tuple[int, ...]:
    return tuple(event for commit in lake for event in commit.events)


def recorded(lake: tuple[Commit, ...]) -> Iterator[tuple[int, Cut]]:
    for commit in lake:
        yield from enumerate(commit.cuts, commit.first)


def happenings(rules: Rules, world: World) -> Iterator[tuple[str, World, bool]]:
    """What no process does: words, the world then, whether it is a fault."""
    store = world.store
    if store.lease == HELD and world.allows(Fault.ZOMBIE):
        yield f"the lease of worker {store.epoch} expires", world.with_store(lease=EXPIRED).after(Fault.ZOMBIE), True
    if world.allows(Fault.FAILOVER) and not world.backup:
        yield "the store's standby falls behind", world._replace(backup=(store,)).after(Fault.FAILOVER), True
    if world.backup and world.backup[0] != store:
        lost = world._replace(store=world.backup[0], backup=(), is_read=False)
        lost = lost.with_store(lease=EXPIRED if lost.store.lease == HELD else lost.store.lease)
        yield f"the store fails over to number {len(lost.store.cuts)}, epoch {lost.store.epoch}", lost, True
    for cut in store.cuts:
        for key in (rules.key(cut, partition) for partition in rules.parts(cut)):
            holds = dict(world.files).get(key)
            if holds == DAMAGED:
                restored = put(world, key, cut.holds)._replace(parked=False)
                yield f"the slice file {key} of {cut} is restored", restored, False
            elif holds is not None and world.allows(Fault.DAMAGE) and cut.end > len(events(world.lake)):
                damaged = put(world, key, DAMAGED).after(Fault.DAMAGE)
                yield f"the slice file {key} of {cut} is replaced", damaged, True


def put(world: World, key: tuple[int, ...], holds: tuple[int, int]) -> World:
    files = dict(world.files) | {key: holds}
    return world._replace(files=tuple(SliceFile(*item) for item in sorted(files.items())))
