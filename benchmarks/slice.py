"""One slice into a table of a million rows, beside an append of the same rows and the MERGE of the documentation.

    python -m benchmarks.slice sc://localhost:15002 [rounds]

Each arm has its own copy of the table; arms take turns, so that a busy machine hits all of them. Medians, and the
ratio to the append: the append is the least that any engine must do.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession

from benchmarks.slice_arms import CHANGES, ROWS, SCHEMA, Arm, append_arm, documented_arm, our_arm
from cdc_pipeline.fold.model import Event
from cdc_pipeline.lake.session import connect
from cdc_pipeline.object_store.local import LocalObjectStore
from tests.support.lake import event

HOT = ROWS // 50
WARM_UPS = 2


def changes(chance: Random, round_number: int) -> list[Event]:
    """10,000 events on the last fiftieth of the ids: nine updates to one insert."""
    found = []
    for place in range(CHANGES):
        number = round_number * CHANGES + place + 1
        new = place % 10 == 0
        id_ = ROWS + number if new else ROWS - chance.randrange(HOT)
        values = {"customer": id_ % 1000, "note": f"note {number} " * 8, "amount": number, "at": datetime.now(UTC)}
        found.append(event("i" if new else "u", number, id_, **values))
    return found


def main() -> None:
    url, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as folder:
        store = LocalObjectStore(Path(folder))
        sessions: list[SparkSession] = [connect(url), connect(url), SparkSession.builder.remote(url).create()]
        makers: list[Callable[[SparkSession, LocalObjectStore], Arm]] = [our_arm, append_arm, documented_arm]
        arms = [make(session, store) for make, session in zip(makers, sessions, strict=True)]
        seconds: dict[str, list[float]] = {arm.name: [] for arm in arms}
        chance = Random(1)
        for round_number in range(rounds + WARM_UPS):
            events = changes(chance, round_number)
            for arm in arms:
                run = arm.prepare(events)
                started = time.perf_counter()
                run()
                if round_number >= WARM_UPS:
                    seconds[arm.name].append(time.perf_counter() - started)
        for session in sessions:
            session.stop()
    floor = statistics.median(seconds["append"])
    print(f"{CHANGES:,} changes in {ROWS:,} rows of {len(SCHEMA.columns)} columns, {rounds} rounds")
    for name, taken in seconds.items():
        median = statistics.median(taken)
        print(f"{name:12} {median:7.2f} s   {median / floor:5.1f} x append   worst {max(taken):.2f} s")


if __name__ == "__main__":
    main()
