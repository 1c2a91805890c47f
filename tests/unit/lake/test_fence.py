"""The fence is found in the log alone, at a cost that does not grow with the log."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import FenceMismatch, LakeError
from cdc_pipeline.lake.checkpoint import write_checkpoint
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.fence import claim_metadata, commit_info, fence_action, read_fence, write_again
from cdc_pipeline.lake.ledger_values import SliceIdentity
from cdc_pipeline.lake.new_table import create_plain_table
from cdc_pipeline.lake.protocol import ClaimWork, LakePublication, LakeTable, SliceInput
from cdc_pipeline.lake.publication import publish
from cdc_pipeline.lake.rewind import rewind
from cdc_pipeline.object_store import ObjectInfo
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import no_step
from tests.support.lake import NOW, PEOPLE, table_of

APP = "cdc/uuid-1"
TABLE = "datalake/shop/public/people"


class CountingStore(LocalObjectStore):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.calls = 0

    def get(self, key: str) -> bytes:
        self.calls += 1
        return super().get(key)

    def head(self, key: str) -> ObjectInfo:
        self.calls += 1
        return super().head(key)


def claim(number: int, app_id: str = APP, at: datetime = NOW) -> list[Action]:
    content = SliceInput(number=number, slice_id=f"id-{number}", key="k", rows=1, sha256=f"h-{number}", schema=PEOPLE)
    work = ClaimWork(claim_id=f"claim-{number}", first_number=number, last_number=number, slices=(content,))
    info = commit_info(operation="MERGE", user_metadata=claim_metadata(work), read_version=0, now=at)
    return [info, fence_action(app_id, number, at)]


def test_a_rewind_to_a_version_with_another_fence_commits_nothing(tmp_path: Path) -> None:
    """As after a lake was lost, and the metadata store has versions of the old one."""
    store = LocalObjectStore(tmp_path)
    log = DeltaLog(store, TABLE)
    for number in (1, 2):
        log.append(number - 1, claim(number))
    table = LakeTable(
        name=TableName(database="shop", schema="public", table="people"), table_uuid="uuid-1", schema=PEOPLE
    )
    with pytest.raises(FenceMismatch, match=r"version 0 of shop\.public\.people held slices to 1; expected 2"):
        rewind(store, table, 0, lambda: NOW, no_step, fence_then=2)
    assert log.latest_version() == 1


def optimize() -> list[Action]:
    return [commit_info(operation="OPTIMIZE", user_metadata="", read_version=0, now=NOW)]


def test_two_thousand_commits_cost_no_more_than_a_few_reads(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    log = DeltaLog(store, TABLE)
    for version in range(2000):
        log.append(version, claim(version))
    log.append(2000, optimize())
    store.calls = 0
    fence = read_fence(log, APP)
    assert fence is not None
    assert (fence.number, fence.claim_id, fence.lake_version) == (1999, "claim-1999", 2000)
    assert fence.slices == (SliceIdentity(1999, "id-1999", "h-1999"),)
    assert store.calls < 40


def test_a_cleaned_log_still_gives_the_number_from_its_checkpoint(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    log = DeltaLog(store, TABLE)
    log.append(30, optimize())
    transactions = [None, {"appId": "other", "version": 9}, {"appId": APP, "version": 12}]
    folder = tmp_path / TABLE / "_delta_log"
    pq.write_table(pa.table({"txn": transactions}), folder / f"{30:020d}.checkpoint.parquet")
    (folder / "_last_checkpoint").write_text(json.dumps({"version": 30, "size": 3}))
    fence = read_fence(log, APP)
    assert fence is not None
    assert (fence.number, fence.claim_id, fence.slices, fence.lake_version) == (12, "", (), 30)


def test_the_fence_of_another_table_in_the_log_is_not_ours(tmp_path: Path) -> None:
    log = DeltaLog(LocalObjectStore(tmp_path), TABLE)
    log.append(0, [fence_action("cdc/other", 5, NOW)])
    fence = read_fence(log, APP)
    assert fence is not None
    assert fence.number == 0


def test_a_table_without_a_log_has_no_fence(tmp_path: Path) -> None:
    assert read_fence(DeltaLog(LocalObjectStore(tmp_path), TABLE), APP) is None


def test_two_writers_of_one_version_cannot_both_win(tmp_path: Path) -> None:
    log = DeltaLog(LocalObjectStore(tmp_path), TABLE)
    log.append(0, claim(1))
    with pytest.raises(LakeError, match="somebody else wrote version 0"):
        log.append(0, claim(2))


def test_a_fence_that_the_log_would_forget_is_written_again_with_the_same_words(tmp_path: Path) -> None:
    log = DeltaLog(LocalObjectStore(tmp_path), TABLE)
    log.append(0, [*claim(7), {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}])
    log.append(1, optimize())
    week = timedelta(days=7)
    assert not write_again(log, APP, NOW + week, week + week)
    assert write_again(log, APP, NOW + week, week)
    assert not write_again(log, APP, NOW + week, week)
    (tmp_path / TABLE / "_delta_log" / f"{0:020}.json").unlink()
    (tmp_path / TABLE / "_delta_log" / "_last_checkpoint").write_text(json.dumps({"version": 1}))
    fence = read_fence(log, APP)
    assert fence is not None
    assert (fence.number, fence.claim_id, fence.lake_version) == (7, "claim-7", 2)
    assert fence.slices == (SliceIdentity(7, "id-7", "h-7"),)


def test_a_table_that_was_listed_again_costs_no_read_of_its_old_log(tmp_path: Path) -> None:
    """It has another id then, of which no commit is there until its snapshot is published."""
    store, table = CountingStore(tmp_path), table_of()
    log = DeltaLog(store, lake_key(table.name))
    create_plain_table(log, table, lambda: NOW)
    for version in range(1, 400):
        log.append(version, claim(version, "cdc/former"))
    write_checkpoint(store, log, 395, 0, no_step)
    store.calls = 0
    fence = read_fence(log, table.app_id)
    assert fence is not None
    assert (fence.number, fence.lake_version) == (0, 399)
    assert store.calls < 30
    for number, snapshot_id in enumerate(("s1", "s2"), 5):
        store.calls = 0
        content = LakePublication(snapshot_id=snapshot_id, files=(), fence_number=number)
        assert publish(log, table, content, lambda: NOW, no_step) == publish(log, table, content, lambda: NOW, no_step)
        assert store.calls < 90
    log.append(402, optimize())
    store.calls = 0
    fence = read_fence(log, table.app_id)
    assert fence is not None
    assert (fence.number, fence.snapshot_id, fence.repeated_at) == (6, "s2", None)
    assert store.calls < 20
    assert write_again(log, table.app_id, NOW, timedelta(0))
    store.calls = 0
    assert read_fence(log, table.app_id) == replace(fence, lake_version=403)
    assert store.calls < 20


def test_an_export_as_of_the_start_is_looked_for_among_the_commits_since_it_began(tmp_path: Path) -> None:
    """Its fence is 0, and no commit of the table has a lower one. The worker's clock may be behind the store's."""
    store, table, began = CountingStore(tmp_path), table_of(), NOW + timedelta(days=1)
    log = DeltaLog(store, lake_key(table.name))
    create_plain_table(log, table, lambda: NOW)
    for version in range(1, 400):
        log.append(version, claim(version))
    write_checkpoint(store, log, 395, 0, no_step)
    content = LakePublication(snapshot_id="s1", files=(), fence_number=0, replaces=399, started_at=began)
    at = began - timedelta(minutes=30)
    for number in range(3):
        store.calls = 0
        assert publish(log, table, content, lambda: at, no_step) == 400
        assert store.calls < 90
        log.append(401 + number, claim(1 + number, at=at))


def test_a_fence_that_delta_left_out_of_a_checkpoint_is_found_in_the_log(tmp_path: Path) -> None:
    """As by `delta.setTransactionRetentionDuration`. Then the fences of all ids of the table are left out."""
    store, table = LocalObjectStore(tmp_path), table_of()
    log = DeltaLog(store, lake_key(table.name))
    create_plain_table(log, table, lambda: NOW)
    for version in range(1, 5):
        log.append(version, [*optimize(), fence_action("cdc/checkpoint", version, NOW)])
    write_checkpoint(store, log, 4, 0, no_step)
    path = tmp_path / log.folder / f"{1:020}.json"
    path.write_text("".join(json.dumps(action) + "\n" for action in claim(7, table.app_id)))
    fence = read_fence(log, table.app_id)
    assert fence is not None
    assert (fence.number, fence.claim_id, fence.lake_version) == (7, "claim-7", 4)
