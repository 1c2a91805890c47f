"""Files beside the commits of a log: those that only save time may be damaged, of others an error says what to do."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.checkpoint import write_checkpoint
from cdc_pipeline.lake.delta_log import DeltaLog, VersionTaken
from cdc_pipeline.lake.fence import commit_info, fence_action, write_again
from cdc_pipeline.lake.new_table import create_plain_table
from cdc_pipeline.lake.table_state import LakeTableStates
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.steps import no_step
from tests.support.lake import NOW, table_of

TABLE = table_of()
LATEST, CHECKPOINT = 4, 3


def commit(log: DeltaLog, *versions: int) -> None:
    for version in versions:
        info = commit_info(operation="x", user_metadata="", read_version=version - 1, now=NOW)
        log.append(version, [info, fence_action(TABLE.app_id, version, NOW)])


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path)


@pytest.fixture
def log(store: LocalObjectStore) -> DeltaLog:
    """A log of five versions with a checkpoint."""
    log = DeltaLog(store, lake_key(TABLE.name))
    create_plain_table(log, TABLE, lambda: NOW)
    commit(log, *range(1, LATEST + 1))
    write_checkpoint(store, log, CHECKPOINT, 0, no_step)
    return log


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"version": "3"}', b'{"version": 3, "parts": "x"}'])
def test_a_name_of_the_last_checkpoint_that_cannot_be_read_is_none(
    store: LocalObjectStore, log: DeltaLog, content: bytes
) -> None:
    store.overwrite(log.last_checkpoint_key, content)
    assert log.latest_version() == LATEST
    assert LakeTableStates().at(log, LATEST).metadata == log.metadata(0)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"tableSizeBytes": 1}', b'{"metadata": null}'])
def test_a_checksum_file_that_cannot_be_read_is_none(store: LocalObjectStore, log: DeltaLog, content: bytes) -> None:
    store.put_if_absent(f"{log.folder}/{LATEST:020d}.crc", content)
    assert log.metadata(LATEST) == log.metadata(0)


@pytest.mark.parametrize("content", [None, b"", b"PAR1 and something else", b"PAR1 and a footer PAR1"])
def test_an_error_names_a_checkpoint_that_is_damaged_or_missing(
    store: LocalObjectStore, log: DeltaLog, content: bytes | None
) -> None:
    key = log.checkpoint_key(CHECKPOINT)
    store.delete_all([key])
    if content is not None:
        store.put_if_absent(key, content)
    for reading in (LakeTableStates().at, DeltaLog.active_files):
        with pytest.raises(LakeError, match=f"the checkpoint {key} cannot be read") as raised:
            reading(log, LATEST)
    assert "delete the file and _last_checkpoint beside it" in raised.value.remedy
    store.delete_all([key, log.last_checkpoint_key])
    assert LakeTableStates().at(log, LATEST).metadata == log.metadata(0)


def test_no_damaged_byte_of_a_checkpoint_is_read_as_other_content(store: LocalObjectStore, log: DeltaLog) -> None:
    key = log.checkpoint_key(CHECKPOINT)
    content, files = store.get(key), log.active_files(LATEST)
    refused = 0
    for place in range(0, len(content), 23):
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        store.overwrite(key, bytes(damaged))
        try:
            assert log.active_files(LATEST) == files
        except LakeError:
            refused += 1
    assert refused


def test_an_error_says_that_a_log_lacks_its_beginning(store: LocalObjectStore, log: DeltaLog) -> None:
    lost = [log.checkpoint_key(CHECKPOINT), log.last_checkpoint_key, f"{log.folder}/{0:020d}.json"]
    store.delete_all(lost)
    with pytest.raises(LakeError, match="does not say the metaData of version 4"):
        log.metadata(LATEST)


@pytest.fixture
def missing(store: LocalObjectStore, log: DeltaLog) -> int:
    """A version that is missing where the search for the latest version ends before it, though later ones are there."""
    commit(log, *range(LATEST + 1, LATEST + 5))
    missing = LATEST + 2
    store.delete(f"{log.folder}/{missing:020d}.json")
    return missing


def test_no_commit_is_written_where_one_is_missing(log: DeltaLog, missing: int) -> None:
    found = rf"version {missing} of .* is missing, and {missing + 1} is there"
    for writing in (
        lambda: commit(log, missing),
        lambda: write_again(log, TABLE.app_id, NOW + timedelta(days=1), timedelta()),
    ):
        with pytest.raises(LakeError, match=found) as raised:
            writing()
        assert "bring the log's files back" in raised.value.remedy
    assert not log.exists(missing)


def test_a_table_whose_first_commit_is_missing_is_not_created_again(store: LocalObjectStore, log: DeltaLog) -> None:
    lost = [log.checkpoint_key(CHECKPOINT), log.last_checkpoint_key, f"{log.folder}/{0:020d}.json"]
    store.delete_all(lost)
    with pytest.raises(LakeError, match=r"version 0 of .* is missing"):
        create_plain_table(log, TABLE, lambda: NOW)


def test_a_writer_that_two_others_overtook_is_told_that_they_were_first(log: DeltaLog) -> None:
    with pytest.raises(VersionTaken):
        commit(log, LATEST - 1)


def test_an_error_names_the_first_version_that_is_missing(log: DeltaLog, missing: int) -> None:
    for reading in (LakeTableStates().at, DeltaLog.active_files):
        with pytest.raises(LakeError, match=f"version {missing} of .* is missing") as raised:
            reading(log, missing + 2)
        assert "bring the log's files back" in raised.value.remedy


def test_an_empty_commit_is_damaged(store: LocalObjectStore, log: DeltaLog) -> None:
    """A machine that loses its power may leave the file without its content."""
    for content in (b"", b"\n"):
        store.overwrite(f"{log.folder}/{LATEST:020d}.json", content)
        with pytest.raises(LakeError, match=f"{LATEST:020d}.json is no commit of a Delta log"):
            log.read(LATEST)


@pytest.mark.parametrize("character", ["\u0085", "\u2028", "\u2029"])
def test_a_commit_ends_its_lines_only_where_json_does(store: LocalObjectStore, log: DeltaLog, character: str) -> None:
    """Spark writes texts into statistics as they are, without escapes for line separators of Unicode."""
    added = {"add": {"path": f"a{character}b"}}
    store.overwrite(f"{log.folder}/{LATEST + 1:020d}.json", f"{json.dumps(added, ensure_ascii=False)}\n".encode())
    commit = log.read(LATEST + 1)
    assert commit is not None
    assert commit.actions == (added,)
