"""slice_to_lake step by step, as cdc_pipeline/apply/slice_to_lake.py, next_move.py and lake/spark_lake.py take them."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from world import DAMAGED, EXPIRED, FREE, HELD, NO_CLAIM, Commit, Cut, Guard, Rules, World, events, fence


class Worker(NamedTuple):
    """`step` comes next; "" is nobody. `seen`: commits of the lake that it knows; `taken`: events read from files."""

    step: str = ""
    epoch: int = 0
    seen: int = 0
    first: int = 0
    last: int = 0
    cuts: tuple[Cut, ...] = ()
    taken: tuple[int, ...] = ()


WorkerStep = tuple[str, Worker, World]


class Workers:
    """Steps of a worker under the guards that are left."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._single: dict[str, Callable[[Worker, World], WorkerStep]] = {
            "fence": self._fence,
            "claim": self._claim,
            "files": self._files,
            "check": self._check,
            "merge": self._merge,
            "commit": self._commit,
            "prove": self._prove,
            "mark": self._mark,
            "through": self._through,
            "fail": self._fail,
            "alarm": self._alarm,
            "release": self._release,
        }

    def steps(self, who: Worker, world: World) -> Iterator[WorkerStep]:
        if who.step == "view":
            yield from self._view(who, world)
        else:
            yield self._single[who.step](who, world)

    def start(self, world: World) -> Iterator[WorkerStep]:
        """Nobody starts where there is nothing to do, nor in vain: a try that only finds the same again is left out."""
        store = world.store
        waits = store.claim != NO_CLAIM or store.applied != store.all_applied
        parked = world.parked and self._lacks_files(world)
        if waits and not parked and (store.lease != HELD or not self.rules.has(Guard.LEASE)):
            look = Worker("view", store.epoch, seen=len(world.lake))
            if all(then.step != "alarm" for _, then, _ in self._view(look, world)):
                who, taken = Worker("fence", store.epoch + 1), world._replace(parked=False)
                yield f"acquires the lease as worker {who.epoch}", who, taken.with_store(epoch=who.epoch, lease=HELD)

    def _fence(self, who: Worker, world: World) -> WorkerStep:
        return "reads the fence", who._replace(step="view", seen=len(world.lake)), world

    def _lacks_files(self, world: World) -> bool:
        files, rules = dict(world.files), self.rules
        cuts = [cut for place, cut in enumerate(world.store.cuts) if not world.store.applied >> place & 1]
        return any(files.get(rules.key(cut, part)) != cut.holds for cut in cuts for part in rules.parts(cut))

    def _view(self, who: Worker, world: World) -> Iterator[WorkerStep]:
        """next_move of cdc_pipeline/apply/next_move.py."""
        rules, store = self.rules, world.store
        applied = next((place for place in range(len(store.cuts)) if not store.applied >> place & 1), len(store.cuts))
        number = fence(world.lake[: who.seen]) if rules.has(Guard.FENCE_READ) else applied
        latest = world.lake[who.seen - 1] if who.seen and rules.has(Guard.FENCE_READ) else Commit(1, 0, (), ())
        fenced = store.cuts[latest.first - 1 : latest.last]
        claim_first, claim_last = store.claim
        if rules.has(Guard.FENCE_IDS) and fenced != latest.cuts:
            yield f"{latest.cuts} in the lake is {fenced} in the metadata store", Worker("alarm", who.epoch), world
        elif (
            0 < self._closing(world) <= number or _marks(latest.first, latest.last) & store.all_applied & ~store.applied
        ):
            yield f"finds the lake at number {number}", Worker("through", who.epoch, last=number), world
        elif store.applied >> number:
            yield f"marked are more than number {number}, where the lake ends", Worker("alarm", who.epoch), world
        elif claim_last:
            if claim_first == number + 1 and claim_last <= len(store.cuts):
                yield f"finds the open claim {store.claim}", self._taking(who, world, *store.claim), world
            else:
                yield f"the claim {store.claim} is not what follows number {number}", Worker("alarm", who.epoch), world
        elif number >= len(store.cuts):
            yield "finds nothing to do", Worker("release", who.epoch), world
        else:
            for first in range(number + 1, (number + 1 if rules.has(Guard.CLAIM_NEXT) else len(store.cuts)) + 1):
                for last in range(first, min(len(store.cuts), first + rules.claim_cuts - 1) + 1):
                    yield f"chooses numbers {first} to {last}", self._taking(who, world, first, last), world

    def _closing(self, world: World) -> int:
        """From which number of the lake on the open claim is over: that of its first slice."""
        first, last = world.store.claim
        return first if self.rules.has(Guard.CLAIM_OVERTAKEN) else last

    def _taking(self, who: Worker, world: World, first: int, last: int) -> Worker:
        step = "claim" if self.rules.has(Guard.CLAIM_RECORDED) else "files"
        return Worker(step, who.epoch, first=first, last=last, cuts=world.store.cuts[first - 1 : last])

    def _is_stale(self, who: Worker, world: World, guard: Guard) -> bool:
        return self.rules.has(guard) and who.epoch != world.store.epoch

    def _claim(self, who: Worker, world: World) -> WorkerStep:
        store, claim = world.store, (who.first, who.last)
        waiting = _marks(1 if self.rules.has(Guard.CLAIM_NEXT) else who.first, who.last) & ~store.applied
        if self._is_stale(who, world, Guard.CLAIM_EPOCH):
            return "is refused the claim: its lease is over", Worker(), world
        if store.claim not in (NO_CLAIM, claim) or waiting != _marks(*claim) or waiting & ~store.all_applied:
            return (
                "is refused the claim: another one is open, or another number waits",
                Worker("release", who.epoch),
                world,
            )
        return f"records the claim {claim}", who._replace(step="files"), world.with_store(claim=claim)

    def _files(self, who: Worker, world: World) -> WorkerStep:
        found, taken = dict(world.files), list[int]()
        for cut in who.cuts:
            for partition in self.rules.parts(cut):
                holds = found.get(self.rules.key(cut, partition))
                if holds is None or (self.rules.has(Guard.FILE_HASH) and holds != cut.holds):
                    return f"finds a slice file of {cut} damaged", Worker("fail", who.epoch), world
                taken += self._held(holds, partition)
        step = "check" if self.rules.has(Guard.MARK_LAST) else "mark"
        return "checks the slice files", who._replace(step=step, taken=tuple(sorted(taken))), world

    def _held(self, holds: tuple[int, int], partition: int) -> list[int]:
        ours = self.rules.partitions
        return [event for event in range(*holds) if holds == DAMAGED or ours[event] == partition]

    def _check(self, who: Worker, world: World) -> WorkerStep:
        number = fence(world.lake)
        if not self.rules.has(Guard.FENCE_CHECK) or number == who.first - 1:
            return "checks the fence", who._replace(step="merge"), world
        if number >= who.last:
            return f"finds the lake at number {number} already", who._replace(step="prove", taken=()), world
        return f"finds the lake at number {number}", Worker("fail", who.epoch), world

    def _merge(self, who: Worker, world: World) -> WorkerStep:
        if self.rules.has(Guard.COMMIT_SKIP) and fence(world.lake) >= who.last:
            return "has its MERGE skipped", who._replace(step="prove", taken=()), world
        return "begins its MERGE", who._replace(step="commit", seen=len(world.lake)), world

    def _commit(self, who: Worker, world: World) -> WorkerStep:
        lake, behind = world.lake[: who.seen], world.lake[who.seen :]
        if behind and self.rules.has(Guard.COMMIT_ONCE) and self.rules.has(Guard.COMMIT_CONFLICT):
            return "is refused its commit: there is another", Worker("release", who.epoch), world
        known = events(lake) if self.rules.has(Guard.ROW_VERSION) else ()
        commit = Commit(who.first, who.last, who.cuts, tuple(event for event in who.taken if event not in known))
        marked = who._replace(step="mark", seen=0, taken=())
        then = marked if self.rules.has(Guard.MARK_LAST) else Worker("fence", who.epoch)
        whole = (*lake, *behind, commit) if self.rules.has(Guard.COMMIT_ONCE) else (*lake, commit, *behind[1:])
        return f"commits numbers {who.first} to {who.last}", then, world._replace(lake=whole)

    def _prove(self, who: Worker, world: World) -> WorkerStep:
        found = next(commit for commit in world.lake if commit.last >= who.last)
        ours = set(enumerate(who.cuts, who.first))
        if self.rules.has(Guard.PROOF_IDS) and not ours <= set(enumerate(found.cuts, found.first)):
            return f"finds {found.cuts} in the lake instead of {who.cuts}", Worker("fail", who.epoch), world
        return "proves that the lake has its claim", who._replace(step="mark", seen=0, taken=()), world

    def _mark(self, who: Worker, world: World) -> WorkerStep:
        store, marks = world.store, _marks(who.first, who.last) & world.store.all_applied
        then = Worker("fence", who.epoch) if self.rules.has(Guard.MARK_LAST) else who._replace(step="check")
        if self._is_stale(who, world, Guard.MARK_EPOCH):
            return "is refused its mark: its lease is over", Worker(), world
        is_same = store.cuts[who.first - 1 : who.last] == who.cuts or not self.rules.has(Guard.CLAIM_ID)
        if is_same and (store.claim == (who.first, who.last) or not self.rules.has(Guard.CLAIM_RECORDED)):
            return (
                f"marks numbers {who.first} to {who.last}",
                then,
                world.with_store(applied=store.applied | marks, claim=NO_CLAIM),
            )
        if store.applied & marks == _marks(who.first, who.last):
            return "finds its claim marked", then, world
        return "is refused its mark: its claim is not open", Worker("release", who.epoch), world

    def _through(self, who: Worker, world: World) -> WorkerStep:
        if self._is_stale(who, world, Guard.MARK_EPOCH):
            return "is refused its mark: its lease is over", Worker(), world
        store = world.store
        claim = NO_CLAIM if self._closing(world) <= who.last else store.claim
        marked = world.with_store(applied=store.applied | _marks(1, who.last) & store.all_applied, claim=claim)
        return f"marks all numbers up to {who.last}", Worker("fence", who.epoch), marked

    def _fail(self, who: Worker, world: World) -> WorkerStep:
        if self._is_stale(who, world, Guard.CLAIM_EPOCH):
            return "is refused to give up its claim: its lease is over", Worker(), world
        return (
            "gives up its claim, and the table is parked",
            Worker("release", who.epoch),
            world.with_store(claim=NO_CLAIM)._replace(parked=True),
        )

    def _alarm(self, who: Worker, world: World) -> WorkerStep:
        """What a worker saw while a newer one was at work is no alarm."""
        is_over = who.epoch != world.store.epoch
        return "looks whether its lease is over", Worker() if is_over else Worker("release", who.epoch), world

    def _release(self, who: Worker, world: World) -> WorkerStep:
        is_mine = (world.store.epoch, world.store.lease) == (who.epoch, HELD)
        return "releases the lease", Worker(), world.with_store(lease=FREE) if is_mine else world


def gone(who: Worker, world: World) -> World:
    is_mine = (world.store.epoch, world.store.lease) == (who.epoch, HELD)
    return world.with_store(lease=EXPIRED) if is_mine else world


def _marks(first: int, last: int) -> int:
    """A bit for each number."""
    return (1 << last) - (1 << first - 1) if last else 0
