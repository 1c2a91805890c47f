"""The rows of the table, what each must reach, and the verdict on what was measured. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

NOT_MEASURED: Final = "not measured"
Reached = bool | Literal["not measured"]
TITLES = {
    "B1": "consumer, slot to registered slices; 1,000, 10 and 1 rows a transaction",
    "B2": "snapshot to staging",
    "B3": "staging to published; a snapshot of 100 tables of 1,000 rows",
    "B4": "a claim of 10,000 changes into 10 million rows: hot, zipf, uniform",
    "B5": "slope of B4 from 1 to 30 million rows (log-log)",
    "B6": "1,000 claims in a row, maintenance inside the clock",
    "B7": "tables kept fresh on two cores by the whole stack with Airflow",
    "B8": "catch-up: 1,000 waiting slices of 10,000 changes",
    "B9": "freshness, commit in the source to readable row",
    "B10": "processor seconds per slice run beyond the claim itself",
    "B11": "processor seconds per million events end to end; memory over table size",
    "files": "change files to registered slices",
    "streams": "records of MariaDB, Kafka and Kinesis to registered slices",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """`value`: the name of a measured value. `needs`: sizes below which the value says nothing about the goal."""

    row: str
    value: str
    at_least: float | None = None
    at_most: float | None = None
    needs: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"

    def is_reached(self, found: float) -> bool:
        return (self.at_least is None or found >= self.at_least) and (self.at_most is None or found <= self.at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalVerdict:
    """`measured` None: no value. `reason`: why `reached` is neither true nor false."""

    value: str
    measured: float | None
    goal: str
    reached: Reached
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowVerdict:
    """`reached`: false if one of the goals is missed, true if all are reached."""

    id: str
    what: str
    reached: Reached
    goals: tuple[GoalVerdict, ...]
    reason: str = ""


_TEN_MILLION = {"rows": 10_000_000, "changes": 10_000}
_TO_THIRTY_MILLION = {"small": 1_000_000, "large": 30_000_000, "changes": 10_000}
_STREAMS = ("MariaDB", "Kafka", "Kinesis")
_THOUSAND_CLAIMS = {"claims": 1_000}
GOALS = (
    Goal(
        row="B1", value="1,000 rows a transaction: events/s over pg_recvlogical", at_least=2, needs={"events": 50_000}
    ),
    Goal(
        row="B1",
        value="10 rows a transaction: events/s over pg_recvlogical",
        at_least=1.5,
        needs={"small_events": 20_000},
    ),
    Goal(
        row="B1", value="1 row a transaction: events/s over pg_recvlogical", at_least=1, needs={"small_events": 20_000}
    ),
    Goal(row="B1", value="1,000 rows a transaction: events/s over plain loop", at_least=3, needs={"events": 50_000}),
    Goal(row="B2", value="rows/s over COPY to null", at_least=0.8, needs={"rows": 300_000}),
    Goal(row="B2", value="rows/s over cursor loop", at_least=5, needs={"rows": 300_000}),
    Goal(row="B2", value="peak of the worker in MB, largest table", at_most=400, needs={"memory_rows": 3_000_000}),
    Goal(row="B3", value="rows/s over pyarrow read, sort, write", at_least=0.5, needs={"rows": 300_000}),
    Goal(row="B3", value="seconds of a snapshot of many tables", at_most=60, needs={"tables": 100, "table_rows": 1000}),
    Goal(row="B4", value="hot: times an append", at_most=2, needs=_TEN_MILLION),
    Goal(row="B4", value="hot: times the tuned MERGE", at_most=0.25, needs=_TEN_MILLION),
    Goal(row="B4", value="uniform: times an append", at_most=5, needs=_TEN_MILLION),
    Goal(row="B4", value="uniform: times the tuned MERGE", at_most=0.25, needs=_TEN_MILLION),
    Goal(row="B5", value="hot: slope", at_most=0.05, needs=_TO_THIRTY_MILLION),
    Goal(row="B5", value="uniform: slope", at_most=0.35, needs=_TO_THIRTY_MILLION),
    Goal(row="B6", value="last tenth of the claims over the first", at_most=1.15, needs=_THOUSAND_CLAIMS),
    Goal(row="B6", value="full scan over a fresh table's", at_most=1.3, needs=_THOUSAND_CLAIMS),
    Goal(row="B6", value="files over a fresh table's", at_most=2, needs=_THOUSAND_CLAIMS),
    Goal(row="B6", value="opening the log over the append-only table's", at_most=2, needs=_THOUSAND_CLAIMS),
    Goal(row="B7", value="tables whose p99 freshness is at most 120 s", at_least=100, needs={"minutes": 15}),
    Goal(row="B8", value="events/s over one MERGE per slice", at_least=30, needs={"slices": 1_000, "changes": 10_000}),
    Goal(row="B8", value="peak memory of all slices over that of a fifth", at_most=1.2, needs={"slices": 1_000}),
    Goal(
        row="B9",
        value="p99 freshness beyond the slice length, seconds",
        at_most=3,
        needs={"fast": 20_000},
    ),
    Goal(row="B10", value="processor seconds beyond the claim", at_most=0.3),
    Goal(row="B10", value="JVM starts per slice run", at_most=0),
    Goal(row="B11", value="processor seconds per million events", at_most=15, needs={"events": 50_000}),
    Goal(row="B11", value="peak memory over table size: exponent", at_most=0.05, needs={"memory_rows": 3_000_000}),
    *(
        Goal(row="files", value=f"{kind}: rows/s over its reader", at_least=0.5, needs={"rows": 50_000})
        for kind in ("DMS CSV", "DMS Parquet", "JSON Lines", "Debezium's JSON Lines")
    ),
    *(
        Goal(row="streams", value=f"{kind}: events/s over its client", at_least=0.5, needs={"events": 20_000})
        for kind in _STREAMS
    ),
    *(
        Goal(
            row="streams",
            value=f"{kind}: peak memory, many events over few",
            at_most=1.2,
            needs={"memory_events": 30_000, "memory_times": 4},
        )
        for kind in _STREAMS
    ),
)


def verdict_of(
    row: str, values: Mapping[str, float], sizes: Mapping[str, int], missing: Mapping[str, str] | None = None
) -> RowVerdict:
    """`missing`: why a value is not there, by its name."""
    verdicts = tuple(_goal_verdict(goal, values, sizes, missing or {}) for goal in GOALS if goal.row == row)
    reached = {verdict.reached for verdict in verdicts}
    whole: Reached = False if False in reached else NOT_MEASURED if NOT_MEASURED in reached or not reached else True
    return RowVerdict(id=row, what=TITLES[row], reached=whole, goals=verdicts, reason=_reasons(verdicts, whole))


def not_measured(row: str, reason: str) -> RowVerdict:
    goals = tuple(_goal_verdict(goal, {}, {}, {goal.value: reason}) for goal in GOALS if goal.row == row)
    return RowVerdict(id=row, what=TITLES[row], reached=NOT_MEASURED, goals=goals, reason=reason)


def _goal_verdict(
    goal: Goal, values: Mapping[str, float], sizes: Mapping[str, int], missing: Mapping[str, str]
) -> GoalVerdict:
    measured = values.get(goal.value)
    reason = missing.get(goal.value, "no value was measured") if measured is None else _too_small(goal, sizes)
    reached: Reached = NOT_MEASURED if measured is None or reason else goal.is_reached(measured)
    return GoalVerdict(value=goal.value, measured=measured, goal=str(goal), reached=reached, reason=reason)


def _too_small(goal: Goal, sizes: Mapping[str, int]) -> str:
    """Small sizes flatter as often as they blacken: neither is a verdict."""
    small = [(name, need) for name, need in goal.needs.items() if sizes.get(name, 0) < need]
    return "; ".join(f"{name} was {sizes.get(name, 0):,}, the goal is for {need:,}" for name, need in small)


def _reasons(verdicts: tuple[GoalVerdict, ...], reached: Reached) -> str:
    return "" if reached != NOT_MEASURED else "; ".join(sorted({each.reason for each in verdicts if each.reason}))
