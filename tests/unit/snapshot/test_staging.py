"""Staging: every data partition has a folder of its own, whatever its text; a table without a key has no order."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.steps import no_step
from snapshot.hand_offs import SnapshotFile
from snapshot.snapshot_to_staging import NULL_PARTITION, SnapshotToStaging
from tests.support.memory_source import MemoryLog, MemorySource

AWKWARD = ["", ".", "..", "é" * 300, "x" * 300, NULL_PARTITION, "__", "a/b", "%2E", "A", "a", " ", None]
COLUMNS = (Column(name="place", type="text"), Column(name="number", type="int8"))


def staging_in(
    folder: Path, *, key: tuple[str, ...] = (), partition_by: tuple[PartitionBy, ...] = ()
) -> SnapshotToStaging:
    return SnapshotToStaging(
        table=TableName.parse("shop.public.notes"),
        schema=TableSchema(columns=COLUMNS, key=key),
        snapshot_id="first",
        update_time=None,
        partition_by=partition_by,
        source=MemorySource(table=TableName.parse("shop.public.notes"), log=MemoryLog()),
        objects=LocalObjectStore(folder),
        on_step=no_step,
    )


def put_rows(folder: Path, places: list[str | None]) -> SnapshotFile:
    rows = pa.table({"place": pa.array(places, pa.string()), "number": pa.array(range(len(places), 0, -1), pa.int64())})
    (folder / "db-snapshot").mkdir()
    pq.write_table(rows, folder / "db-snapshot" / "rows.parquet")
    return SnapshotFile(snapshot_key="db-snapshot/rows.parquet", file_id="000000")


def staged_rows(folder: Path, key: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in pq.ParquetFile(folder / key).read().to_pylist()]


def test_every_text_of_a_partition_has_a_folder_of_its_own(tmp_path: Path) -> None:
    snapshot_file = put_rows(tmp_path, AWKWARD * 2)
    staging = staging_in(tmp_path, partition_by=(PartitionBy(column="place"),))
    staged = staging.stage(snapshot_file).files
    assert len({file.key for file in staged}) == len(staged) == len(AWKWARD)
    for file in staged:
        ((_, place),) = file.partition
        assert [found[0] for found in staged_rows(tmp_path, file.key)] == [place] * 2
        assert max(len(part.encode()) for part in file.key.split("/")) <= 255
    assert staging.stage(snapshot_file).files == staged


@pytest.mark.parametrize("key", [(), ("number",)])
def test_a_table_without_a_key_keeps_every_row_and_its_order(tmp_path: Path, key: tuple[str, ...]) -> None:
    snapshot_file = put_rows(tmp_path, ["a", "a", None])
    (staged,) = staging_in(tmp_path, key=key).stage(snapshot_file).files
    expected: list[tuple[object, ...]] = [("a", 3), ("a", 2), (None, 1)]
    assert staged_rows(tmp_path, staged.key) == (expected[::-1] if key else expected)
