"""The last version with the columns of the last claim is found by the few commits since that claim."""

import json
from pathlib import Path

import pytest

from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.fence import AGAIN, commit_info, fence_action
from cdc_pipeline.lake.schema_change import before_next_shape
from cdc_pipeline.object_store.local import LocalObjectStore
from tests.support.lake import NOW

APP = "cdc/uuid-1"


class ReadingStore(LocalObjectStore):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gets = 0

    def get(self, key: str) -> bytes:
        self.gets += 1
        return super().get(key)


def commit(operation: str) -> list[Action]:
    words = json.dumps({AGAIN: True}) if operation == "CDC FENCE again" else ""
    info = commit_info(operation=operation.removesuffix(" again"), user_metadata=words, read_version=0, now=NOW)
    moves = operation in {"MERGE", "CDC FENCE", "CDC FENCE again", "CDC REWIND"}
    return [info, *([fence_action(APP, 7, NOW)] if moves else [])]


@pytest.mark.parametrize(
    ("operations", "found"),
    [
        (["MERGE"], 0),
        (["MERGE", "CDC OPTIMIZE", "ADD COLUMNS"], 2),
        (["MERGE", "CDC SHAPE"], 0),
        (["MERGE", "WRITE", "CDC SHAPE", "CDC OPTIMIZE", "OPTIMIZE"], 1),
        (["MERGE", "CDC SHAPE", "CDC OPTIMIZE", "CDC SHAPE"], 0),
        (["MERGE", "CDC SHAPE", "CDC FENCE again"], 0),
        (["CDC SHAPE", "MERGE", "CDC OPTIMIZE"], 2),
        (["CDC SHAPE", "CDC FENCE"], 1),
        (["MERGE", "CDC SHAPE", "MERGE", "CDC REWIND"], 3),
    ],
)
def test_commits_from_a_change_of_columns_on_are_left_out_up_to_the_last_claim(
    tmp_path: Path, operations: list[str], found: int
) -> None:
    log = DeltaLog(LocalObjectStore(tmp_path), "lake/parts")
    for version, operation in enumerate(operations):
        log.append(version, commit(operation))
    assert before_next_shape(log, APP, len(operations) - 1) == found


def test_no_commit_before_the_last_claim_is_read(tmp_path: Path) -> None:
    store = ReadingStore(tmp_path)
    log = DeltaLog(store, "lake/parts")
    for version in range(50):
        log.append(version, commit("MERGE"))
    log.append(50, commit("CDC SHAPE"))
    assert before_next_shape(log, APP, 50) == 49
    assert store.gets == 2
