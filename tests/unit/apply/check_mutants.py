"""Reports what the check of slice files makes of COUNT mutants from SEED, in a process with little memory."""

import json
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_pipeline.apply.slice_check import check_content
from cdc_pipeline.errors import SliceDamaged
from cdc_pipeline.metadata_store.rows import SliceRow
from tests.support.mutants import MUTATIONS, TEXTS, Original, new_world
from tests.support.slice_rows import registered

MOST_MEMORY_BYTES = 160 << 20
"""More than what the process has when it begins."""
MOST_SECONDS = 200
MOST_UNPACKED_BYTES = 32 << 20
SAME, OTHER, UNREADABLE = "the same rows", "other rows", "unreadable"


def is_refused(row: SliceRow, content: bytes) -> bool:
    try:
        check_content(row, content, TEXTS, most_unpacked_bytes=MOST_UNPACKED_BYTES)
    except SliceDamaged:
        return True
    return False


def read(content: bytes) -> pa.Table | None:
    try:
        return pq.read_table(pa.BufferReader(content))
    except (OSError, ValueError, MemoryError, pa.ArrowException):
        return None


def outcome(row: SliceRow, of: Original, mutant: bytes) -> str:
    """What becomes of a mutant whose size and hash are forged in the registry."""
    forged = registered(mutant, row.rows)
    if is_refused(forged, mutant):
        return "refused"
    rows = read(mutant)
    if rows is None:
        return UNREADABLE
    return SAME if rows.equals(read(of.content)) else OTHER


def main() -> None:
    seed, count = sys.argv[1], int(sys.argv[2])
    world = new_world()
    before = memory_bytes()
    resource.setrlimit(resource.RLIMIT_AS, (before + MOST_MEMORY_BYTES, -1))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, -1))
    accepted, slowest = list[str](), 0.0
    forged = {mutation.__name__: Counter[str]() for mutation in MUTATIONS}
    for number in range(count):
        random, mutation = Random(f"{seed} {number}"), MUTATIONS[number % len(MUTATIONS)]
        of = random.choice(world.originals)
        mutant = mutation(random, of, world)
        began = time.process_time()
        row = registered(of.content, of.rows)
        if mutant == of.content or not is_refused(row, mutant):
            accepted.append(f"{mutation.__name__} {number}")
        forged[mutation.__name__][outcome(row, of, mutant)] += 1
        slowest = max(slowest, time.process_time() - began)
    sys.stdout.write(json.dumps({"accepted": accepted, "forged": forged, "slowest": slowest}))


def memory_bytes() -> int:
    """Of address space, which is what the limit counts."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
