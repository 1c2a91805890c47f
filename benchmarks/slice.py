"""One slice of 10,000 changes into a table of a million rows, beside an append of them and the documentation's MERGE.

    python -m benchmarks.slice [sc://host:port] [rounds] [rows]

Each arm has its own copy of the table; arms take turns, so that a busy machine hits all of them. Medians, and the
ratio to the append: the append is the least that any engine must do. The changes fall on the last 20,000 ids, however
many rows there are.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession

from benchmarks.driver import chosen_driver
from benchmarks.slice_arms import NAMES, SCHEMA, Arm, append_arm, documented_arm, our_arm
from cdc_pipeline.lake.session import connect, untuned_session
from cdc_pipeline.object_store.local import LocalObjectStore
from tests.support.fold.model import Event
from tests.support.lake import event

ROWS, ROUNDS, WARM_UPS = 1_000_000, 5, 2
CHANGES = 10_000
MAKERS: tuple[Callable[[SparkSession, LocalObjectStore, int], Arm], ...] = (our_arm, append_arm, documented_arm)


class UnequalArmsError(Exception):
    """The project and the documented MERGE have seen the same changes and hold other rows."""


def changes_of(chance: Random, round_number: int, *, rows: int, changes: int) -> list[Event]:
    """Nine updates, on the last ids of the filled table, twice as many as changes, to one insert of the next id."""
    found = []
    for place in range(changes):
        number = round_number * changes + place + 1
        new = place % 10 == 0
        id_ = rows + 1 + number // 10 if new else rows - chance.randrange(2 * changes)
        values = {"customer": id_ % 1000, "note": f"note {number} " * 8, "amount": number, "at": datetime.now(UTC)}
        found.append(event("i" if new else "u", number, id_, **values))
    return found


def measure(url: str, rounds: int, *, rows: int, changes: int) -> dict[str, list[float]]:
    """Seconds of each round by arm. Raises UnequalArmsError instead of giving figures of a wrong lake."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        store = LocalObjectStore(Path(folder))
        arms = list[Arm]()
        for make in MAKERS:
            session = untuned_session(url) if make is documented_arm else connect(url)
            opened.callback(session.stop)
            arms.append(make(session, store, rows))
        seconds: dict[str, list[float]] = {arm.name: [] for arm in arms}
        chance = Random(1)
        for round_number in range(rounds + WARM_UPS):
            events = changes_of(chance, round_number, rows=rows, changes=changes)
            for arm in arms:
                run = arm.prepare(events)
                started = time.perf_counter()
                run()
                if round_number >= WARM_UPS:
                    seconds[arm.name].append(time.perf_counter() - started)
        ours, _, documented = arms
        _check_equal(session, ours, documented)
    return seconds


def _check_equal(session: SparkSession, *arms: Arm) -> None:
    """By the number of rows, and by a sum over each row's hash."""
    found = {
        arm.name: session.sql(f"SELECT count(*), sum(CAST(xxhash64({NAMES}) AS DECIMAL(38))) FROM {arm.target}").first()
        for arm in arms
    }
    if len(set(found.values())) > 1:
        raise UnequalArmsError(str(found))


def main(words: Sequence[str]) -> None:
    with chosen_driver(words) as (url, given):
        rounds, rows = [*given, *(ROUNDS, ROWS)[len(given) :]]
        changes = min(CHANGES, rows // 50)
        seconds = measure(url, rounds, rows=rows, changes=changes)
    floor = statistics.median(seconds["append"])
    print(f"{changes:,} changes in {rows:,} rows of {len(SCHEMA.columns)} columns, {rounds} rounds")
    for name, taken in seconds.items():
        median = statistics.median(taken)
        print(f"{name:12} {median:7.2f} s   {median / floor:5.1f} x append   worst {max(taken):.2f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
