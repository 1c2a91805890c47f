"""B4 and B5: a claim of some changes into a table, beside an append of them and other ways to merge; and its slope."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from benchmarks.arms import Arm, Contest, ContestFigures
from benchmarks.bench import OURS, Bench, plus
from benchmarks.claim_arms import ClaimWorld, append_arm, deltalake_arm, documented_arm, our_arms
from benchmarks.curves import Curve
from benchmarks.figures import slope
from benchmarks.results import RowFigures
from benchmarks.slice_files import PATTERNS, Pattern, SliceMaker

Arms = Callable[[ClaimWorld], Sequence[Arm]]


def measure_claims(bench: Bench) -> RowFigures:
    """B4. All patterns go into the same tables, one after the other."""
    sizes = bench.sizes("B4")
    contests = measured(bench, sizes["rows"], sizes["changes"], PATTERNS, all_arms)
    values = dict[str, float | None]()
    for found, pattern in zip(contests, PATTERNS, strict=True):
        values |= {
            f"{pattern}: times an append": found.ratio(OURS, "append"),
            f"{pattern}: times the tuned MERGE": found.ratio(OURS, "documentation's MERGE, tuned"),
            f"{pattern}: times deltalake's merge": found.ratio(OURS, "deltalake's merge"),
        }
    return RowFigures(contests=contests, values=plus(values), sizes=sizes)


def measure_slope(bench: Bench) -> RowFigures:
    """B5: the same claims into tables of two sizes."""
    sizes = bench.sizes("B5")
    patterns: tuple[Pattern, ...] = ("hot", "uniform")
    rows = (sizes["small"], sizes["large"])
    by_size = [measured(bench, each, sizes["changes"], patterns, few_arms) for each in rows]
    values, lines = dict[str, float](), dict[str, list[tuple[float, float]]]()
    for place, pattern in enumerate(patterns):
        for name in by_size[0][place].arms:
            found = [(size, each[place].arms.get(name)) for size, each in zip(rows, by_size, strict=True)]
            points = [(size, figures.wall_seconds.median) for size, figures in found if figures is not None]
            lines[f"{name}, {pattern}"] = [(float(size), seconds) for size, seconds in points]
            if len(points) == len(rows):
                values[f"{pattern}: slope" if name == OURS else f"{pattern}: slope of {name}"] = slope(points)
    curve = Curve(title="A claim", across="rows of the table", upwards="seconds", lines=lines, logarithmic=True)
    contests = tuple(each for contests in by_size for each in contests)
    return RowFigures(contests=contests, values=values, sizes=sizes, curves={"claims": curve} if lines else {})


def measured(
    bench: Bench, rows: int, changes: int, patterns: Sequence[Pattern], make: Arms
) -> tuple[ContestFigures, ...]:
    with opened_world(bench, rows) as world:
        arms, maker = tuple(make(world)), slice_maker(world)
        found: list[ContestFigures] = []
        for pattern in patterns:
            maker.pattern = pattern
            contest = Contest(
                name=f"{pattern} changes, {rows:,} rows",
                rows=changes,
                arms=arms,
                prepare=lambda _: world.next_slices(maker, changes),
                parameters={"rows": rows, "changes": changes},
                warm_ups=1 if found or bench.scale != "full" else 2,
            )
            found.append(bench.clockwork.measure(contest))
    return tuple(found)


@contextmanager
def opened_world(bench: Bench, rows: int) -> Iterator[ClaimWorld]:
    with ExitStack() as opened:
        yield ClaimWorld(bench=bench, opened=opened, rows=rows, folder=bench.folder(opened))


def slice_maker(world: ClaimWorld, pattern: Pattern = "hot") -> SliceMaker:
    chance = np.random.default_rng(world.bench.seed)
    return SliceMaker(objects=world.objects, rows=world.rows, pattern=pattern, chance=chance)


def all_arms(world: ClaimWorld) -> Sequence[Arm]:
    merges = (documented_arm(world, tuned=False), documented_arm(world, tuned=True), deltalake_arm(world))
    return (append_arm(world), *our_arms(world), *merges)


def few_arms(world: ClaimWorld) -> Sequence[Arm]:
    return (append_arm(world), *our_arms(world))
