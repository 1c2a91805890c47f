"""stream_to_slices step by step, as cdc_pipeline/consume/stream_to_slices.py and consumer.py take them."""

from collections.abc import Iterator
from typing import NamedTuple

from world import Cut, Fault, Guard, Rules, World, put

NO_CUT = Cut(0, 0, 0)


class Consumer(NamedTuple):
    """`step` comes next; "" is nobody. `is_opening`: cut files are adopted before anything is read."""

    step: str = ""
    epoch: int = 0
    place: int = 0
    cut: Cut = NO_CUT
    is_opening: bool = False


ConsumerStep = tuple[str, Consumer, World]


class Consumers:
    """Steps of a consumer in the order that the guards leave."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        order = [f"put {partition}" for partition in sorted(set(rules.partitions))]
        kept = ["cut", "register"] if rules.has(Guard.CUT_FILE) else ["register"]
        order = [*order, *kept] if rules.has(Guard.FILES_FIRST) else [*kept, *order]
        self.order = [*order, "confirm"] if rules.has(Guard.CONFIRM_LAST) else ["confirm", *order]

    def steps(self, who: Consumer, world: World) -> Iterator[ConsumerStep]:
        step, _, argument = who.step.partition(" ")
        match step:
            case "open":
                yield self._open(who, world)
            case "read":
                yield from self._read(who, world)
            case "put":
                yield from self._put(who, world, int(argument))
            case "cut":
                yield self._put_cut(who, world)
            case "register":
                yield self._register(who, world)
            case "confirm":
                words = f"confirms event {who.cut.end - 1} to the slot"
                yield words, self._then(who), world._replace(slot=max(world.slot, who.cut.end - 1))

    def start(self, world: World) -> Iterator[ConsumerStep]:
        """Somebody starts one when nobody reads; a second one is a fault."""
        store = world.store
        if store.offset < self.rules.end and (not world.is_read or world.allows(Fault.ZOMBIE)):
            who = Consumer("open", store.assignment + 1, store.offset)
            taken = world.with_store(assignment=who.epoch)._replace(is_read=True)
            taken = taken.after(Fault.ZOMBIE) if world.is_read else taken
            yield f"takes the stream at {who.place} as consumer {who.epoch}", who, taken

    def left(self, who: Consumer, world: World) -> World:
        return world._replace(is_read=world.is_read and who.epoch != world.store.assignment)

    def _open(self, who: Consumer, world: World) -> ConsumerStep:
        found = _cut_file(world, who.place)
        if found is None or not self.rules.has(Guard.ADOPTION):
            return "looks for no cut file further", who._replace(step="read"), world
        adopting = who._replace(step="register", place=0, cut=found, is_opening=True)
        return f"adopts the cut file of {found}", adopting, world

    def _read(self, who: Consumer, world: World) -> Iterator[ConsumerStep]:
        """After the last event only heartbeats come. The slot cannot send again what was confirmed to it."""
        store, rules = world.store, self.rules
        if who.place == rules.end:
            if (store.assignment, store.offset) != (who.epoch, who.place):
                yield "sends a heartbeat and is refused", Consumer(), self.left(who, world)
        elif world.slot <= who.place:
            begin = who.place if rules.has(Guard.SKIP_REPEATED) else world.slot
            for end in range(who.place + 1, min(rules.end, who.place + rules.cut_events) + 1):
                cut = Cut(who.place, end, begin)
                yield f"cuts {cut}", self._then(who._replace(place=0, cut=cut)), world

    def _put(self, who: Consumer, world: World, partition: int) -> Iterator[ConsumerStep]:
        """Where another file has its name, it stops for good: the next cut may end anywhere else."""
        key, holds = self.rules.key(who.cut, partition), who.cut.holds
        if not self.rules.has(Guard.SLICE_ONCE) or dict(world.files).get(key, holds) == holds:
            yield f"puts the slice file {key} of {who.cut}", self._then(who), put(world, key, holds)

    def _put_cut(self, who: Consumer, world: World) -> ConsumerStep:
        found = _cut_file(world, who.cut.start)
        if found is not None and self.rules.has(Guard.CUT_ONCE):
            return f"finds the cut file of {found}", who._replace(step="register", cut=found), world
        files = sorted({cut for cut in world.cut_files if cut.start != who.cut.start} | {who.cut})
        return f"puts the cut file of {who.cut}", self._then(who), world._replace(cut_files=tuple(files))

    def _register(self, who: Consumer, world: World) -> ConsumerStep:
        store, cut = world.store, who.cut
        if self.rules.has(Guard.ASSIGNMENT) and who.epoch != store.assignment:
            return f"is refused {cut}: another one took the stream", Consumer(), self.left(who, world)
        if store.cuts and store.cuts[-1] == cut:
            return f"registers {cut} once more", self._then(who), world
        if self.rules.has(Guard.OFFSET) and store.offset != cut.start:
            return f"is refused {cut}: the next offset is {store.offset}", Consumer(), self.left(who, world)
        words = f"registers {cut} as number {len(store.cuts) + 1}"
        written = world.with_store(offset=cut.end, cuts=(*store.cuts, cut))
        return words, self._then(who), written

    def _then(self, who: Consumer) -> Consumer:
        """A stream partition without events in the cut has no file."""
        step = self.order.index(who.step) + 1 if who.step in self.order else 0
        for name in self.order[step:]:
            if not name.startswith("put") or int(name[4:]) in self.rules.parts(who.cut):
                return who._replace(step=name)
        return Consumer("open" if who.is_opening else "read", who.epoch, who.cut.end)


def _cut_file(world: World, place: int) -> Cut | None:
    return next((cut for cut in world.cut_files if cut.start == place), None)
