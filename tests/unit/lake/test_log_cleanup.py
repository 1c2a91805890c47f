"""When a log gets its next checkpoint, and when its expired commits go."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.lake.checkpoint import write_checkpoint
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.maintenance import checkpoint_when_due, clean_log, duration_of
from cdc_pipeline.lake.table_state import LakeTableState
from cdc_pipeline.object_store import ObjectInfo
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.steps import no_step
from tests.unit.lake.test_checkpoint import (
    METADATA,
    OLD,
    PROTOCOL,
    START,
    TABLE,
    KilledError,
    info,
    random_commits,
    replayed,
)

DAY = timedelta(days=1)


class UnlistedStore(LocalObjectStore):
    """Ends whoever lists it."""

    def list_prefix(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        raise KilledError(prefix, after)


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path)


@pytest.fixture
def log(store: LocalObjectStore) -> DeltaLog:
    return DeltaLog(store, TABLE)


@pytest.mark.parametrize(("rows", "is_due"), [(999_999, True), (1_000_000, False)])
def test_a_checkpoint_with_many_tombstones_comes_more_rarely(
    store: LocalObjectStore, log: DeltaLog, rows: int, *, is_due: bool
) -> None:
    for version in range(11):
        log.append(version, [info(), {"metaData": METADATA}, {"protocol": PROTOCOL}] if not version else [info()])
    write_checkpoint(store, log, 0, OLD, no_step)
    pointer = json.loads(store.get(log.last_checkpoint_key))
    store.overwrite(log.last_checkpoint_key, json.dumps(pointer | {"size": rows}).encode())
    state = LakeTableState(version=10, metadata=METADATA, protocol=PROTOCOL)
    checkpoint_when_due(no_session, store, log, state, lambda: START, no_step)
    assert (state.checkpoint == 10) is is_due
    assert json.loads(store.get(log.last_checkpoint_key))["version"] == (10 if is_due else 0)


def no_session() -> Any:
    raise KilledError


def test_expired_commits_are_deleted_up_to_the_checkpoint_that_the_rest_needs(
    tmp_path: Path, store: LocalObjectStore, log: DeltaLog
) -> None:
    commits = random_commits(5, 40)
    for number, actions in enumerate(commits):
        log.append(number, [info(START + number * DAY / 2), *actions[1:]])
        if number % 10 == 9:
            write_checkpoint(store, log, number, OLD, no_step)
    state = LakeTableState(version=39, metadata={"configuration": {"delta.logRetentionDuration": "interval 7 days"}})
    now = START + 20 * DAY
    # Version 25 was the last one seven days ago. It is read from the checkpoint of 19.
    assert clean_log(store, log, state, now, no_step) == 20
    kept = [found.key.rpartition("/")[2] for found in store.list_prefix(log.folder)]
    assert kept[:2] == [f"{19:020d}.checkpoint.parquet", f"{19:020d}.json"]
    assert log.active_files(25).keys() == replayed(commits[:26])["add"].keys()
    unlisted = UnlistedStore(tmp_path)
    of_another_process = LakeTableState(version=39, metadata=state.metadata)
    for of_process in (state, of_another_process):
        assert clean_log(unlisted, DeltaLog(unlisted, TABLE), of_process, now + DAY / 2, no_step) == 0
    with pytest.raises(KilledError):
        clean_log(unlisted, DeltaLog(unlisted, TABLE), of_another_process, now + 3 * DAY, no_step)
    for off in ("false", "False"):
        state.metadata["configuration"]["delta.enableExpiredLogCleanup"] = off
        assert clean_log(store, log, state, now + 90 * DAY, no_step) == 0


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("interval 7 days", 7 * DAY),
        ("INTERVAL 1 week", 7 * DAY),
        ("interval 1 day 12 hours", 1.5 * DAY),
        ("interval 2 months", None),
        ("soon", None),
    ],
)
def test_durations_of_table_properties(text: str, duration: timedelta | None) -> None:
    assert duration_of(text) == duration
