"""B8: waiting slices applied in as few claims as the settings allow, beside one MERGE for each slice."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.arms import Arm, Contest, ContestFigures
from benchmarks.bench import OURS, Bench
from benchmarks.claim_arms import ClaimWorld, WrongRowsError, documented_arm, our_arms
from benchmarks.claims import opened_world, slice_maker
from benchmarks.results import RowFigures
from benchmarks.slice_files import MadeSlice, SliceMaker, claim_work
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.launcher.processes import ALLOCATORS
from cdc_pipeline.wiring import Pipeline

PEER = "one MERGE per slice"
UNCHANGED = -1
M_ARENA_MAX = -8
"""The number of the option in malloc.h."""
FULL_CLAIM = 5
"""Share of the slices that fill a claim at full size: with fewer, memory would be that of a smaller claim."""


def measure(bench: Bench) -> RowFigures:
    """Memory is that of contests without the peer, which works in the same driver."""
    sizes = bench.sizes("B8")
    with allocators_of_an_installation(), opened_world(bench, sizes["rows"]) as world:
        backlog = Backlog(world=world, maker=slice_maker(world), changes=sizes["changes"])
        ours = our_arms(world, claim=backlog.caught_up, check=backlog.checked)
        merges = min(sizes["merges"], sizes["slices"])
        documented = documented_arm(world, tuned=False)
        peer = Arm(name=PEER, run=lambda: backlog.first(merges, documented.run), rows=merges * sizes["changes"])
        contests = (
            bench.clockwork.measure(backlog.contest(max(1, sizes["slices"] // FULL_CLAIM), ours)),
            bench.clockwork.measure(backlog.contest(sizes["slices"], ours, memory=True)),
            bench.clockwork.measure(backlog.contest(sizes["slices"], (*ours, peer))),
        )
    values = {}
    speed = contests[2].speed(OURS, PEER)
    if speed is not None:
        values["events/s over one MERGE per slice"] = speed
    peaks = [peak_of(found) for found in contests[:2]]
    if all(peaks):
        values["peak memory of all slices over that of a fifth"] = peaks[1] / peaks[0]
    return RowFigures(contests=contests, values=values, sizes=sizes)


@contextmanager
def allocators_of_an_installation() -> Iterator[None]:
    """What `launcher.processes.ALLOCATORS` says to a process at its start, for this one, which has started."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, int(ALLOCATORS["MALLOC_ARENA_MAX"]))
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def peak_of(figures: ContestFigures) -> int:
    """The sum of the peaks of client and servers; 0 without figures."""
    return sum(figures.arms[OURS].peak_bytes.values()) if OURS in figures.arms else 0


@dataclass(kw_only=True)
class Backlog:
    """Slices that wait. `amounts`: what the table must hold at the end, by id; UNCHANGED for an id without changes."""

    world: ClaimWorld
    maker: SliceMaker
    changes: int
    amounts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def contest(self, slices: int, arms: Sequence[Arm], *, memory: bool = False) -> Contest:
        return Contest(
            name=f"{slices:,} waiting slices{', memory' if memory else ''}",
            rows=slices * self.changes,
            arms=tuple(arms),
            prepare=lambda _: self.next_slices(slices),
            parameters={"rows": self.world.rows, "slices": slices, "changes": self.changes},
            warm_ups=0,
        )

    def next_slices(self, number: int) -> None:
        """Their events are not kept: a thousand slices would take gigabytes."""
        self.world.slices = []
        for _ in range(number):
            made = self.maker.make(self.changes)
            ids, amounts = (np.asarray(made.events[name]) for name in ("id", "amount"))
            missing = max(0, max(int(ids.max()), self.world.rows) + 1 - len(self.amounts))
            self.amounts = np.concatenate((self.amounts, np.full(missing, UNCHANGED)))
            self.amounts[ids] = amounts
            self.world.slices.append(replace(made, events=made.events.schema.empty_table()))
        # What making the slices took is not memory of the claims.
        pa.default_memory_pool().release_unused()
        ctypes.CDLL(None).malloc_trim(0)

    def first(self, number: int, run: Callable[[], int]) -> int:
        """Applies the first slices alone."""
        every, self.world.slices = self.world.slices, self.world.slices[:number]
        try:
            return run()
        finally:
            self.world.slices = every

    def caught_up(self, pipeline: Pipeline, table: LakeTable) -> Callable[[], int]:
        worker = pipeline.settings.worker

        def run() -> int:
            claims = in_claims(self.world.slices, worker.claim_slices, worker.claim_rows)
            return sum(pipeline.lake.upsert(table, claim_work(slices)).counts.read for slices in claims)

        return run

    def checked(self, table: LakeTable) -> Callable[[], object]:
        session, target = self.world.session(), self.world.target(table)
        query = f"SELECT count(*), count(amount), CAST(sum(amount) AS BIGINT) FROM {target} WHERE id > "

        def check() -> None:
            """The ids that the filled table did not have, and those that the last changes updated."""
            first = max(1, self.world.rows - 2 * self.changes + 1)
            ids, amounts = np.arange(first, len(self.amounts)), self.amounts[first:]
            is_there = (amounts != UNCHANGED) | (ids <= self.world.rows)
            rows, total = int(is_there.sum()), int(np.where(amounts == UNCHANGED, ids - 1, amounts)[is_there].sum())
            found = tuple(session.sql(f"{query}{self.world.rows - 2 * self.changes}").collect()[0])
            if found != (rows, rows, total):
                message = f"the table holds {found} (rows, amounts, their sum), the slices say {(rows, rows, total)}"
                raise WrongRowsError(message)

        return check


def in_claims(slices: Sequence[MadeSlice], most_slices: int, most_rows: int) -> Iterator[list[MadeSlice]]:
    """In order, each claim with at least one slice."""
    claim: list[MadeSlice] = []
    for made in slices:
        rows = sum(each.content.rows for each in claim) + made.content.rows
        if claim and (len(claim) == most_slices or rows > most_rows):
            yield claim
            claim = []
        claim.append(made)
    if claim:
        yield claim
