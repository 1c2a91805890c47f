"""What the log of a table of many files costs: its state at a cold start, a claim's files, and a checkpoint.

Beside them: deltalake, which reads the same log without Spark.
"""

import json
from functools import partial

from deltalake import DeltaTable

from benchmarks.arms import Arm, Contest
from benchmarks.bench import Bench, plus
from benchmarks.results import RowFigures
from cdc_pipeline.lake.checkpoint import write_checkpoint
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.protocol import KeyRange
from cdc_pipeline.lake.table_state import LakeTableState, LakeTableStates
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.steps import no_step
from tests.support.delta_rows import delta_url

TABLE = "datalake/bench/public/many_files"
IDS_PER_FILE, COMMITS_BEHIND, RANGES = 1_000, 20, 16
COLD, SEARCH, CHECKPOINT, DELTALAKE = "cold start", "search of a claim's files", "checkpoint", "deltalake's cold start"
METADATA = {
    "id": "many-files",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps(
        {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    ),
    "partitionColumns": [],
    "configuration": {},
}
FEATURES = ["deletionVectors"]
PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": FEATURES, "writerFeatures": FEATURES}


def measure(bench: Bench) -> RowFigures:
    sizes = bench.sizes("lake-log")
    store = LocalObjectStore(bench.folder())
    log, files = DeltaLog(store, TABLE), sizes["files"]
    log.append(0, [{"metaData": METADATA}, {"protocol": PROTOCOL}, *map(added, range(files - COMMITS_BEHIND))])
    write_checkpoint(store, log, 0, 0, no_step)
    for version in range(1, COMMITS_BEHIND + 1):
        log.append(version, [{"commitInfo": {"timestamp": 1}}, added(files - version)])
    state = LakeTableStates().at(log, COMMITS_BEHIND)
    search = partial(searched, state, files)

    def checkpoint() -> int:
        write_checkpoint(store, log, COMMITS_BEHIND, 0, no_step)
        pointer = json.loads(store.get(log.last_checkpoint_key))
        store.delete(log.checkpoint_key(COMMITS_BEHIND))
        store.overwrite(log.last_checkpoint_key, json.dumps({"version": 0, "size": files}).encode())
        return int(pointer["numOfAddFiles"])

    contest = Contest(
        name=f"the log of {files:,} files",
        rows=files,
        arms=(
            Arm(name=COLD, run=lambda: len(LakeTableStates().at(log, COMMITS_BEHIND).files)),
            Arm(name=SEARCH, run=search, rows=search()),
            Arm(name=CHECKPOINT, run=checkpoint),
            Arm(name=DELTALAKE, run=lambda: len(DeltaTable(delta_url(store, TABLE)).file_uris())),
        ),
        parameters={"files": files, "commits behind the checkpoint": COMMITS_BEHIND},
    )
    found = bench.clockwork.measure(contest)
    ratio = {f"{name} over {DELTALAKE}": found.ratio(name, DELTALAKE) for name in (COLD, SEARCH, CHECKPOINT)}
    return RowFigures(contests=(found,), values=plus(ratio), sizes=sizes)


def searched(state: LakeTableState, files: int) -> int:
    """As many ranges as a claim of scattered ids has."""
    step = max(1, files * IDS_PER_FILE // RANGES)
    return len(state.files.within("id", [KeyRange(number * step, number * step) for number in range(RANGES)]))


def added(number: int) -> Action:
    """A third of the files has a deletion vector."""
    stats = {
        "numRecords": IDS_PER_FILE,
        "minValues": {"id": number * IDS_PER_FILE, "_cdc_version": "00000000000000aa-00000001"},
        "maxValues": {"id": (number + 1) * IDS_PER_FILE - 1, "_cdc_version": "00000000000000aa-00000001"},
        "nullCount": {"id": 0, "_cdc_version": 0},
        "tightBounds": number % 3 != 0,
    }
    file = {
        "path": f"snapshot-one/part-{number:08d}.zstd.parquet",
        "partitionValues": {},
        "size": 1 << 27,
        "modificationTime": 1,
        "dataChange": True,
        "stats": json.dumps(stats),
    }
    vector = {"storageType": "i", "pathOrInlineDv": f"{number:020d}", "sizeInBytes": 16, "cardinality": 3}
    return {"add": file if number % 3 else {**file, "deletionVector": vector}}
