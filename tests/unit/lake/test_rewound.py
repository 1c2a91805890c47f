"""A rewind goes back as far as the table keeps the files of its older versions."""

import json
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote
from uuid import UUID

import pytest

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.deletion_vectors import z85_encode
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.fence import commit_info, fence_action, read_fence, write_again
from cdc_pipeline.lake.new_table import create_plain_table
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.publication import remove
from cdc_pipeline.lake.rewind import rewind
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.steps import no_step
from tests.support.lake import NOW, table_of

PROPERTY = "delta.deletedFileRetentionDuration"
DATA, VECTOR = "region=a%2Fb/part-1.parquet", "ab/deletion_vector_00000000-0000-0000-0000-000000000001.bin"


@pytest.fixture
def table() -> LakeTable:
    return table_of()


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path)


@pytest.fixture
def log(store: LocalObjectStore, table: LakeTable) -> DeltaLog:
    """A table without rows."""
    log = DeltaLog(store, lake_key(table.name))
    assert create_plain_table(log, table, lambda: NOW)
    return log


def commit(log: DeltaLog, table: LakeTable, number: int, *actions: Action) -> None:
    """A commit with the fence `number`, as version `number`."""
    info = commit_info(operation="CDC FENCE", user_metadata="{}", read_version=number - 1, now=NOW)
    log.append(number, [info, fence_action(table.app_id, number, NOW), *actions])


def claim(log: DeltaLog, table: LakeTable, version: int, first: int, last: int) -> None:
    """A commit that applies the slices `first` to `last`."""
    metadata = json.dumps({"claim_id": f"claim-{version}", "first": first, "last": last, "slices": []})
    info = commit_info(operation="WRITE", user_metadata=metadata, read_version=version - 1, now=NOW)
    log.append(version, [info, fence_action(table.app_id, last, NOW)])


def with_properties(log: DeltaLog, **properties: str) -> Action:
    metadata = log.metadata(0)
    return {"metaData": metadata | {"configuration": metadata["configuration"] | properties}}


@pytest.mark.parametrize(
    ("kept", "days", "expected"),
    [
        (None, 6, ""),
        (None, 8, "less than 7 days"),
        ("interval 1 days", 2, "less than 1 day"),
        ("interval 2 weeks", 8, ""),
        ("as long as it takes", 1, rf"the property {PROPERTY} of .* is 'as long as it takes'; expected a duration"),
    ],
)
def test_a_rewind_goes_back_as_far_as_files_are(
    store: LocalObjectStore, log: DeltaLog, table: LakeTable, kept: str | None, days: int, expected: str
) -> None:
    for number in (1, 2):
        commit(log, table, number, with_properties(log, **({} if kept is None else {PROPERTY: kept})))
    later = NOW + timedelta(days=days)
    if not expected:
        assert rewind(store, table, 1, lambda: later, no_step, fence_then=1).number == 1
        return
    with pytest.raises(LakeError, match=expected):
        rewind(store, table, 1, lambda: later, no_step, fence_then=1)
    assert log.latest_version() == 2


@pytest.mark.parametrize("gone", [None, DATA, VECTOR])
def test_no_rewind_shows_a_version_of_which_a_file_is_gone(
    store: LocalObjectStore, log: DeltaLog, table: LakeTable, gone: str | None
) -> None:
    """As when files are kept for longer again, after a shorter time has had its effect."""
    for path in (DATA, VECTOR):
        store.put_if_absent(f"{log.table_key}/{path}", b"rows")
    reference = f"ab{z85_encode(UUID(int=1).bytes)}"
    vector = {"storageType": "u", "pathOrInlineDv": reference, "offset": 1, "sizeInBytes": 4, "cardinality": 1}
    file = {"path": quote(DATA), "partitionValues": {}, "size": 4, "modificationTime": 0, "deletionVector": vector}
    commit(log, table, 1, {"add": {**file, "dataChange": True}})
    commit(log, table, 2, remove(file, 0))
    if gone is None:
        rewind(store, table, 1, lambda: NOW, no_step, fence_then=1)
        assert log.active_files(3).keys() == log.active_files(1).keys()
        return
    store.delete(f"{log.table_key}/{gone}")
    with pytest.raises(LakeError, match=f"version 1 of .* lacks 1 of its files, such as .*{gone}; .*choose a later"):
        rewind(store, table, 1, lambda: NOW, no_step, fence_then=1)
    assert log.latest_version() == 2


@pytest.mark.parametrize("changes_rows", [False, True])
def test_files_are_kept_since_the_last_version_with_the_same_rows(
    store: LocalObjectStore, log: DeltaLog, table: LakeTable, *, changes_rows: bool
) -> None:
    later = NOW + timedelta(days=8)
    store.put_if_absent(f"{log.table_key}/merged", b"rows")
    merged = {"path": "merged", "partitionValues": {}, "size": 4, "modificationTime": 0, "dataChange": changes_rows}
    commit(log, table, 1)
    info = commit_info(operation="OPTIMIZE", user_metadata="", read_version=1, now=NOW)
    log.append(2, [info, {"add": merged}])
    info = commit_info(operation="CDC FENCE", user_metadata="{}", read_version=2, now=later)
    log.append(3, [info, fence_action(table.app_id, 2, later), remove(merged, 0)])
    if changes_rows:
        with pytest.raises(LakeError, match=r"version 1 of .* was replaced"):
            rewind(store, table, 1, lambda: later, no_step, fence_then=1)
    else:
        assert rewind(store, table, 1, lambda: later, no_step, fence_then=1).number == 1
        assert log.active_files(4).keys() == log.active_files(2).keys()


def test_a_rewind_leaves_the_properties_that_users_set(
    store: LocalObjectStore, log: DeltaLog, table: LakeTable
) -> None:
    """Their columns come back all the same."""
    then = with_properties(log, **{PROPERTY: "interval 1 days", "delta.logRetentionDuration": "interval 3 days"})
    commit(log, table, 1, then)
    set_since = {PROPERTY: "interval 30 days", "team": "shop"}
    commit(log, table, 2, with_properties(log, **set_since, **{"delta.columnMapping.maxColumnId": "99"}))
    rewind(store, table, 1, lambda: NOW, no_step, fence_then=1)
    before, after = log.metadata(1)["configuration"], log.metadata(3)["configuration"]
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    assert changed == set_since | {"delta.logRetentionDuration": "interval 7 days"}


def test_a_table_is_set_back_once_to_a_fence_that_maintenance_has_repeated(
    store: LocalObjectStore, log: DeltaLog, table: LakeTable
) -> None:
    """A worker that was paused for days applied slices a second time; the version before has the fence again."""
    claim(log, table, 1, first=1, last=2)
    claim(log, table, 2, first=3, last=5)
    assert write_again(log, table.app_id, NOW + timedelta(days=4), timedelta(days=3))
    claim(log, table, 4, first=3, last=7)
    fence = read_fence(log, table.app_id)
    assert fence is not None
    assert fence.repeated_at == 4
    rewind(store, table, 3, lambda: NOW, no_step, fence_then=None)
    fence = read_fence(log, table.app_id)
    assert fence is not None
    assert (fence.number, fence.repeated_at, fence.rewound_from) == (5, None, 7)
    claim(log, table, 6, first=6, last=7)
    claim(log, table, 7, first=6, last=9)
    fence = read_fence(log, table.app_id)
    assert fence is not None
    assert fence.repeated_at == 7
