"""Staging: every data partition has a folder of its own, whatever its text; a table without a key has no order."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.sources.copied_rows import CopiedRows, UnfitRow
from cdc_pipeline.sources.known import Document, FoundTable, KnownTable
from cdc_pipeline.steps import no_step
from snapshot.hand_offs import SnapshotFile, StagedFiles
from snapshot.snapshot_to_staging import NULL_PARTITION, SnapshotToStaging, is_sorted
from tests.support.memory_source import MemoryLog, MemorySource

AWKWARD = ["", ".", "..", "é" * 300, "x" * 300, NULL_PARTITION, "__", "a/b", "%2E", "A", "a", " ", None]
COLUMNS = (Column(name="place", type="text"), Column(name="number", type="int8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedBlocks:
    """A copy of one table: blocks of (place, number), of which a row without a number does not fit."""

    blocks: Sequence[Sequence[tuple[str | None, int | None]]]

    def columns(self, table: KnownTable) -> tuple[Column, ...]:
        del table
        return COLUMNS

    def description(self, table: KnownTable) -> FoundTable | None:
        del table
        return None

    def parts(self, table: TableName, file_bytes: int) -> Sequence[Document]:
        del table, file_bytes
        return [{}]

    def rows(self, table: TableName, schema: TableSchema, part: Document | None = None) -> Iterator[CopiedRows]:
        del table, schema, part
        for block in self.blocks:
            values = {"place": pa.array([place for place, _ in block], pa.string())}
            values["number"] = pa.array([number for _, number in block], pa.int64())
            unfit = [place for place, (_, number) in enumerate(block) if number is None]
            yield CopiedRows(
                rows=pa.RecordBatch.from_pydict(values),
                unfit_rows=tuple(UnfitRow(row=row, column="number", reason="it is NULL", texts={}) for row in unfit),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedSource(MemorySource):
    blocks: Sequence[Sequence[tuple[str | None, int | None]]]

    @contextmanager
    def copy_at(self, exported: str) -> Iterator[CopiedBlocks]:
        del exported
        yield CopiedBlocks(blocks=self.blocks)


def staging_in(
    folder: Path,
    *,
    key: tuple[str, ...] = (),
    partition_by: tuple[PartitionBy, ...] = (),
    blocks: Sequence[Sequence[tuple[str | None, int | None]]] = (),
    run_bytes: int = 1 << 20,
) -> SnapshotToStaging:
    return SnapshotToStaging(
        table=TableName.parse("shop.public.notes"),
        schema=TableSchema(columns=COLUMNS, key=key),
        snapshot_id="first",
        update_time=None,
        partition_by=partition_by,
        source=CopiedSource(table=TableName.parse("shop.public.notes"), log=MemoryLog(), blocks=blocks),
        objects=LocalObjectStore(folder),
        on_step=no_step,
        run_bytes=run_bytes,
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


BLOCKS: list[list[tuple[str | None, int | None]]] = [
    [("b", 4), ("a", 3), ("c", None)],
    [("a", 2)],
    [("b", 1), (None, 5)],
]


@pytest.mark.parametrize(("run_bytes", "runs"), [(1 << 20, [[1, 2, 3, 4, 5]]), (1, [[3, 4], [2], [1, 5]])])
def test_without_data_partitions_an_export_writes_sorted_staging_files(
    tmp_path: Path, run_bytes: int, runs: list[list[int]]
) -> None:
    staging = staging_in(tmp_path, key=("number",), blocks=BLOCKS, run_bytes=run_bytes)
    exported = staging.export("exported", {}, "000007")
    assert isinstance(exported.output, StagedFiles)
    files = exported.output.files
    assert [[number for _, number in staged_rows(tmp_path, file.key)] for file in files] == runs
    assert (exported.rows, [unfit.row for unfit in exported.unfit]) == (5, [2])
    assert exported.size_bytes == sum((tmp_path / file.key).stat().st_size for file in files)
    assert staging.export("exported", {}, "000007") == exported
    assert not (tmp_path / "db-snapshot").exists()


def test_with_data_partitions_an_export_writes_a_snapshot_file_for_a_staging_task(tmp_path: Path) -> None:
    staging = staging_in(tmp_path, key=("number",), partition_by=(PartitionBy(column="place"),), blocks=BLOCKS)
    exported = staging.export("exported", {}, "000007")
    assert isinstance(exported.output, SnapshotFile)
    assert (exported.rows, [unfit.row for unfit in exported.unfit]) == (5, [2])
    staged = {file.partition[0][1]: staged_rows(tmp_path, file.key) for file in staging.stage(exported.output).files}
    assert staged == {None: [(None, 5)], "a": [("a", 2), ("a", 3)], "b": [("b", 1), ("b", 4)]}


def test_staging_sorts_and_divides_no_more_rows_at_once_than_a_run_has(tmp_path: Path) -> None:
    staging = staging_in(tmp_path, partition_by=(PartitionBy(column="place"),), blocks=BLOCKS, run_bytes=1)
    exported = staging.export("exported", {}, "000007")
    assert isinstance(exported.output, SnapshotFile)
    files = staging.stage(exported.output).files
    assert [staged_rows(tmp_path, file.key) for file in files] == [
        [("a", 3)],
        [("b", 4)],
        [("a", 2)],
        [("b", 1)],
        [(None, 5)],
    ]
    assert [file.rows for file in files] == [1] * 5
    assert staging.stage(exported.output).files == files


@pytest.mark.parametrize("partition_by", [(), (PartitionBy(column="place"),)])
def test_an_export_holds_no_more_rows_that_do_not_fit_than_it_may(
    tmp_path: Path, partition_by: tuple[PartitionBy, ...]
) -> None:
    staging = replace(
        staging_in(tmp_path, partition_by=partition_by, blocks=[[("a", None), ("b", 1)]] * 3), most_unfit=2
    )
    with pytest.raises(
        SnapshotError, match=r"more than 2 rows in one part of shop\.public\.notes .* number; .* as_text"
    ):
        staging.export("exported", {}, "0")
    assert [unfit.row for unfit in replace(staging, most_unfit=3).export("exported", {}, "0").unfit] == [0, 0, 0]


def test_an_export_of_no_rows_writes_no_file(tmp_path: Path) -> None:
    for blocks in ((), [[("a", None)]]):
        assert staging_in(tmp_path, blocks=blocks).export("exported", {}, "0").output == StagedFiles(files=())
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.tuples(st.integers(0, 2), st.none() | st.sampled_from("ab")), max_size=6))
def test_rows_are_sorted_if_a_stable_sort_moves_none(rows: list[tuple[int, str | None]]) -> None:
    first, second = (
        pa.array([row[place] for row in rows], type_) for place, type_ in enumerate((pa.int64(), pa.string()))
    )
    in_order = sorted(rows, key=lambda row: (row[0], row[1] or ""))
    assert is_sorted(pa.table([first, second], ["first", "second"]), ["first", "second"]) == (
        not second.null_count and rows == in_order
    )
