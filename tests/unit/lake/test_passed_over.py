"""What VACUUM passes over in folders of data partitions is deleted once no version that is kept needs it."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.checkpoint import write_checkpoint
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.passed_over import delete_unneeded, delete_unused
from cdc_pipeline.lake.table_state import LakeTableStates
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.steps import no_step
from tests.unit.lake.test_leftovers import TABLE, left, put

NOW = datetime(2026, 5, 1, tzinfo=UTC)
LONG_AGO, LATELY = NOW - timedelta(days=9), NOW - timedelta(days=5)
FORMER, ESCAPED = "snapshot-s1-1/_cdc_name_value=a%20b", "claim-1-x/_cdc_day_month=2026/_cdc_a%2Fb_value=1"
OTHERS = {
    "_delta_log/_cdc_name_value=a/part-0.parquet",
    "_change_data/_cdc_name_value=a/part-0.parquet",
    "claim-9-x/_temporary/0/_cdc_name_value=a/part-0.parquet",
    "_cdc_name_value=a/deletion_vector_1.bin",
    "_cdc_day_month=2026/part-0.parquet",
    "claim-2-x/part-0.parquet",
}
"""No version has these either, but VACUUM or the removal of leftovers sees to them, or nobody knows what they are."""


def described(**configuration: str) -> Action:
    return {"metaData": {"partitionColumns": ["_cdc_day_month", "_cdc_a/b_value"], "configuration": configuration}}


def add(path: str) -> Action:
    return {"add": {"path": quote(path, safe="/=-_.~"), "partitionValues": {}, "size": 1, "modificationTime": 1}}


def remove(path: str, at: datetime) -> Action:
    return {"remove": {"path": quote(path, safe="/=-_.~"), "deletionTimestamp": int(at.timestamp() * 1000)}}


def deleted(store: LocalObjectStore, now: datetime = NOW) -> int:
    return delete_unused(store, DeltaLog(store, TABLE), LakeTableStates(), now)


def commit(root: Path, version: int, actions: list[Action]) -> LocalObjectStore:
    store = LocalObjectStore(root)
    DeltaLog(store, TABLE).append(version, [{"commitInfo": {"timestamp": version}}, *actions])
    return store


def data_files(root: Path) -> set[str]:
    return {path for path in left(root) if not path.startswith("_delta_log/0")}


@pytest.mark.parametrize("folder", [FORMER, ESCAPED])
def test_only_files_that_no_kept_version_needs_are_deleted(tmp_path: Path, folder: str) -> None:
    used, gone, kept, never, young = (f"{folder}/{name}.parquet" for name in ("used", "gone", "kept", "never", "young"))
    put(tmp_path, {used, gone, kept, never, *OTHERS}, LONG_AGO)
    put(tmp_path, {young}, LATELY)
    commit(tmp_path, 0, [described(), add(used), add(gone), add(kept)])
    store = commit(tmp_path, 1, [remove(gone, LONG_AGO), remove(kept, LATELY)])
    assert deleted(store) == 2
    assert data_files(tmp_path) == {used, kept, young, *OTHERS}
    assert deleted(store) == 0
    assert deleted(store, NOW + timedelta(days=3)) == 2
    assert data_files(tmp_path) == {used, *OTHERS}


@pytest.mark.parametrize(("used_as", "kept_as"), [("a%40b", "c"), ("a@b", "%C3%BC"), ("a@b", "c")])
def test_vacuum_runs_only_if_it_finds_all_files_that_are_needed(tmp_path: Path, used_as: str, kept_as: str) -> None:
    """Else unused data files are deleted without it, those of deletion vectors not."""
    used, kept = (f"_cdc_day_month={unquote(name)}/a.parquet" for name in (used_as, kept_as))
    put(tmp_path, {used, kept, *OTHERS}, LONG_AGO)
    tombstone = remove("", LATELY)["remove"] | {"path": f"_cdc_day_month={kept_as}/a.parquet"}
    commit(tmp_path, 0, [described(), {"add": add("")["add"] | {"path": f"_cdc_day_month={used_as}/a.parquet"}}])
    store = commit(tmp_path, 1, [{"remove": tombstone}])
    runs = list[str]()
    states, log = LakeTableStates(), DeltaLog(store, TABLE)
    delete_unneeded(store, log, states, NOW, lambda: runs.append("VACUUM"))
    by_vacuum, unfinished = {"_cdc_day_month=2026/part-0.parquet", "claim-2-x/part-0.parquet"}, "_temporary"
    left_over = {path for path in OTHERS if unfinished not in path}
    if (used_as, kept_as) == ("a@b", "c"):
        assert (runs, data_files(tmp_path)) == (["VACUUM"], {used, kept} | left_over)
    else:
        assert (runs, data_files(tmp_path)) == ([], {used, kept} | left_over - by_vacuum)


def test_the_last_checkpoint_counts_too(tmp_path: Path) -> None:
    used, gone, kept = (f"{FORMER}/{name}.parquet" for name in ("used", "gone", "kept"))
    put(tmp_path, {used, gone, kept}, LONG_AGO)
    protocol: Action = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    actions = [protocol, described(), add(used), remove(gone, LONG_AGO), remove(kept, LATELY)]
    store = commit(tmp_path, 0, actions)
    log = DeltaLog(store, TABLE)
    commit(tmp_path, 1, [])
    write_checkpoint(store, log, 1, 0, no_step)
    store.delete(f"{log.folder}/{0:020}.json")
    assert deleted(store) == 1
    assert {path for path in data_files(tmp_path) if not path.startswith("_delta_log")} == {used, kept}


@pytest.mark.parametrize(("duration", "number"), [("interval 8 days", 1), ("interval 10 days", 0), ("a while", 0)])
def test_files_are_kept_as_long_as_the_table_says(tmp_path: Path, duration: str, number: int) -> None:
    put(tmp_path, {f"{FORMER}/never.parquet"}, LONG_AGO)
    store = commit(tmp_path, 0, [described(**{"delta.deletedFileRetentionDuration": duration})])
    assert deleted(store) == number


def test_nothing_is_deleted_from_a_table_with_files_elsewhere(tmp_path: Path) -> None:
    """Such a path may also name a file in the table's own folder."""
    file = f"{FORMER}/used.parquet"
    put(tmp_path, {file}, LONG_AGO)
    store = commit(tmp_path, 0, [described(), add(f"{tmp_path}/{TABLE}/{file}")])
    assert deleted(store) == 0


def test_without_the_whole_log_nothing_is_deleted(tmp_path: Path) -> None:
    file = f"{FORMER}/used.parquet"
    put(tmp_path, {file}, LONG_AGO)
    commit(tmp_path, 0, [described(), add(file)])
    store = commit(tmp_path, 1, [])
    store.overwrite(DeltaLog(store, TABLE).last_checkpoint_key, json.dumps({"version": 1, "size": 2}).encode())
    with pytest.raises(LakeError, match=r"the checkpoint .* cannot be read"):
        deleted(store)
    assert file in left(tmp_path)


def test_a_folder_without_a_table_stays_as_it_is(tmp_path: Path) -> None:
    put(tmp_path, {f"{FORMER}/part-0.parquet"}, LONG_AGO)
    assert deleted(LocalObjectStore(tmp_path)) == 0
