"""B6: claims in a row into one table, its maintenance inside the clock, beside a table that is only appended to."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from benchmarks.arms import Arm, Contest
from benchmarks.bench import OURS, Bench
from benchmarks.claim_arms import NAMES, ClaimWorld, append_arm, filled_table, our_pipeline
from benchmarks.claims import opened_world, slice_maker
from benchmarks.curves import Curve
from benchmarks.figures import drift
from benchmarks.results import RowFigures
from benchmarks.slice_files import SCHEMA, claim_work
from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import table_at
from cdc_pipeline.wiring import Pipeline
from tests.support.delta_rows import delta_url
from tests.support.lake import table_of

AGED, FRESH, APPENDED = "the table behind the claims", "a fresh table", "the append-only table"
FRESH_KEY = "fresh"
_FILES = 4
"""Those of the table before its first claim."""


def measure(bench: Bench) -> RowFigures:
    sizes = bench.sizes("B6")
    with opened_world(bench, sizes["rows"]) as world:
        maker = slice_maker(world)
        pipeline = our_pipeline(world, {})
        table = filled_table(world, pipeline, "ours")
        ours = Arm(name=OURS, run=maintained(world, pipeline, table))
        contest = Contest(
            name="claims in a row",
            rows=sizes["changes"],
            arms=(ours, append_arm(world)),
            prepare=lambda _: world.next_slices(maker, sizes["changes"]),
            parameters={name: sizes[name] for name in ("rows", "changes")},
            warm_ups=0,
        )
        clockwork = replace(bench.clockwork, budget_seconds=60.0 * sizes["minutes"])
        claims = clockwork.measure(contest, rounds=sizes["claims"])
        walls = {name: figures.walls for name, figures in claims.arms.items()}
        values = {f"last tenth of the claims over the first{_of(name)}": drift(found) for name, found in walls.items()}
        contests = [claims]
        if OURS in walls:
            aged = aged_contests(world, table)
            contests += [bench.clockwork.measure(found) for found in aged]
            values |= {
                f"{name} over {other}'s": ratio
                for name, found in zip(("full scan", "opening the log"), contests[1:], strict=True)
                for other in found.arms
                if other != AGED and (ratio := found.ratio(AGED, other)) is not None
            }
            values["files over a fresh table's"] = files(world, lake_key(table.name)) / files(world, FRESH_KEY)
    lines = {name: [(number + 1.0, wall) for number, wall in enumerate(found)] for name, found in walls.items()}
    curve = Curve(title="Claims in a row", across="claim", upwards="seconds", lines=lines)
    return RowFigures(
        contests=tuple(contests),
        values=values,
        sizes=sizes | {"claims": min(map(len, walls.values()), default=0)},
        curves={"many-claims": curve} if walls else {},
    )


def _of(name: str) -> str:
    return "" if name == OURS else f", {name}"


def maintained(world: ClaimWorld, pipeline: Pipeline, table: LakeTable) -> Callable[[], int]:
    """The maintenance by need that follows each claim, as in a run of slices, counts with the claim."""
    need = pipeline.settings.maintenance

    def run() -> int:
        outcome = pipeline.lake.upsert(table, claim_work(world.slices))
        pipeline.lake.optimize(table, need, claimed_at=outcome.lake_version)
        return outcome.counts.read

    return run


def aged_contests(world: ClaimWorld, table: LakeTable) -> tuple[Contest, Contest]:
    """Reading the table, and opening its log, beside a copy that was written at once.

    The copy's log is one commit; that of the append-only table has as many as there were claims.
    """
    session = world.session()
    fresh_url = world.objects.spark_url(FRESH_KEY)
    rows = f"SELECT /*+ REPARTITION_BY_RANGE({_FILES}, id) */ * FROM {world.target(table)}"
    session.sql(f"CREATE TABLE {table_at(fresh_url)} USING delta AS {rows}").collect()
    number = int(session.sql(f"SELECT count(*) FROM {table_at(fresh_url)}").collect()[0][0])
    key = lake_key(table.name)
    scans = (
        Arm(name=AGED, run=lambda: scanned(session, world.target(table))),
        Arm(name=FRESH, run=lambda: scanned(session, table_at(fresh_url))),
    )
    logs = {AGED: key, FRESH: FRESH_KEY, APPENDED: lake_key(table_of(SCHEMA, name="bench.public.append").name)}
    opens = tuple(Arm(name=name, run=partial(opened_log, delta_url(world.objects, of))) for name, of in logs.items())
    return (
        Contest(name="full scan", rows=number, arms=scans),
        Contest(name="opening the log", rows=1, arms=opens),
    )


def scanned(session: SparkSession, target: str) -> int:
    """Reads every value that people see."""
    return int(session.sql(f"SELECT count(*), sum(xxhash64({NAMES}) % 1000) FROM {target}").collect()[0][0])


def opened_log(url: str) -> int:
    DeltaTable(url)
    return 1


def files(world: ClaimWorld, key: str) -> int:
    return len(DeltaTable(delta_url(world.objects, key)).file_uris())
