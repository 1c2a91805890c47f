"""Files with more rows than fit into memory are rewritten too, and no file is only copied, which would never end."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.deletion_vectors import vector_file
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.file_rewriting import FileRewriting
from cdc_pipeline.lake.file_stats import delta_stats
from cdc_pipeline.lake.new_table import create_plain_table
from cdc_pipeline.lake.protocol import DataFile
from cdc_pipeline.object_store.local import LocalObjectStore
from tests.support.lake import NOW, table_of

TABLE = table_of()
KEY = lake_key(TABLE.name)
MIB = 1 << 20
ROWS = 4_000


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path)


@pytest.fixture
def rewriting(store: LocalObjectStore) -> FileRewriting:
    log = DeltaLog(store, KEY)
    create_plain_table(log, TABLE, lambda: NOW)
    return FileRewriting(store=store, table=TABLE, metadata=log.metadata(0), folder=f"{KEY}/new", most_held_bytes=MIB)


@contextmanager
def counted_memory() -> Iterator[pa.MemoryPool]:
    """Counts what Arrow takes meanwhile."""
    before = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counting)
    try:
        yield counting
    finally:
        pa.set_memory_pool(before)


def document(id_: int) -> str:
    """All differ: the file has each of them, but pages of them compress well."""
    return f"{id_}" + "the same words in every row; " * 35


def status(id_: int) -> str:
    """Few differ: the file has each value once."""
    return f"{id_ % 40}" + "a status that many rows have " * 35


def add_file(store: LocalObjectStore, path: str, ids: range, text: Callable[[int], str], dead: BitMap64) -> Action:
    content = io.BytesIO()
    rows = pa.table({"id": pa.array(ids, pa.int64()), "name": [text(id_) for id_ in ids]})
    pq.write_table(rows, content, compression="zstd")
    store.put_if_absent(f"{KEY}/{path}", content.getvalue())
    file: Action = {"path": path, "partitionValues": {}, "size": len(content.getvalue())}
    file["stats"] = delta_stats(pq.read_metadata(content), ("id",))
    if dead:
        vector_path, vectors, descriptors = vector_file({path: dead})
        store.put_if_absent(f"{KEY}/{vector_path}", vectors)
        file["deletionVector"] = descriptors[path]
    return file


def groups_of(store: LocalObjectStore, file: DataFile) -> list[pa.Table]:
    opened = pq.ParquetFile(io.BytesIO(store.get(file.key)))
    return [opened.read_row_group(number) for number in range(opened.num_row_groups)]


@pytest.mark.parametrize("text", [document, status])
def test_small_files_that_do_not_fit_into_memory_become_one_file(
    store: LocalObjectStore, rewriting: FileRewriting, text: Callable[[int], str]
) -> None:
    """Their ids interleave, so each row group is sorted, but not the file."""
    files = [
        add_file(store, f"{number}.parquet", range(number, 3 * ROWS, 3), text, BitMap64([0, ROWS - 1]))
        for number in range(3)
    ]
    done = rewriting.rewrite(files)
    (added,) = done.added
    groups = groups_of(store, added)
    found = pa.concat_tables(groups).sort_by("id")
    ids = range(3, 3 * ROWS - 3)
    assert (found["id"].to_pylist(), found["name"].to_pylist()) == ([*ids], [text(id_) for id_ in ids])
    assert all(group["id"].to_pylist() == sorted(group["id"].to_pylist()) for group in groups)
    assert all(group.nbytes < 4 * MIB for group in groups)
    assert (done.removed, added.rows) == (files, len(ids))
    assert f'"minValues":{{"id":3}},"maxValues":{{"id":{3 * ROWS - 4}}}' in added.stats


@pytest.mark.parametrize("text", [document, status])
def test_a_file_without_deleted_rows_is_not_copied(
    store: LocalObjectStore, rewriting: FileRewriting, text: Callable[[int], str]
) -> None:
    done = rewriting.rewrite([add_file(store, "whole.parquet", range(ROWS), text, BitMap64())])
    assert (done.removed, done.added) == ([], [])


def test_a_new_file_ends_once_it_is_large_and_a_last_one_alone_stays(
    store: LocalObjectStore, rewriting: FileRewriting
) -> None:
    files = [add_file(store, f"{n}.parquet", range(10 * n, 10 * n + 10), status, BitMap64()) for n in range(5)]
    done = replace(rewriting, file_bytes=files[0]["size"] + 1).rewrite(files)
    assert (done.removed, [file.rows for file in done.added]) == (files[:4], [20, 20])


def test_files_are_rewritten_whatever_least_ids_the_log_has(store: LocalObjectStore, rewriting: FileRewriting) -> None:
    """Delta writes infinity and NaN as texts."""
    files = [add_file(store, f"{number}.parquet", range(number, 9, 3), status, BitMap64()) for number in range(3)]
    for file, low in zip(files, ('"-Infinity"', "0.5", "null"), strict=True):
        file["stats"] = f'{{"numRecords":3,"minValues":{{"id":{low}}}}}'
    (added,) = rewriting.rewrite(files).added
    assert added.rows == 9


@pytest.mark.parametrize("text", [document, status])
def test_memory_does_not_grow_with_the_rows(
    store: LocalObjectStore, rewriting: FileRewriting, text: Callable[[int], str]
) -> None:
    """The rows have 40 MB in memory."""
    file = add_file(store, "large.parquet", range(10 * ROWS), text, BitMap64([0]))
    with counted_memory() as memory:
        (added,) = rewriting.rewrite([file]).added
    assert added.rows == 10 * ROWS - 1
    assert MIB < memory.max_memory() < 16 * MIB
