"""Deletion vectors are written and read as Delta's protocol has them."""

import io
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.deletion_vectors import (
    VectorObjects,
    read_vector,
    read_vectors,
    vector_file,
    vector_path,
    z85_decode,
    z85_encode,
)
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.fence import commit_info
from cdc_pipeline.lake.lake_files import AFTER_ALL, LakeFiles
from cdc_pipeline.lake.rows_commit import rows_commit
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.lake.table_state import LakeTableState
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import ClaimCounts
from cdc_pipeline.settings.work import MaintenanceSettings
from cdc_pipeline.steps import no_step
from tests.support.lake import NOW, table_of

TABLE = "datalake/shop/public/people"


def test_an_inline_vector_is_read(tmp_path: Path) -> None:
    rows = BitMap64([3, 4, 7, 11, 18, 29])
    _, content, descriptors = vector_file({"a": rows})
    size = descriptors["a"]["sizeInBytes"]
    data = content[5 : 5 + size] + bytes(-size % 4)
    inline = {"storageType": "i", "pathOrInlineDv": z85_encode(data), "sizeInBytes": size, "cardinality": 6}
    assert read_vector(LocalObjectStore(tmp_path), TABLE, inline) == rows


def test_a_path_of_the_protocol_names_its_file() -> None:
    assert vector_path("ab^-aqEH.-t@S}K{vb[*k^") == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def test_a_file_has_the_vectors_of_several_data_files(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    rows = {"a": BitMap64([0, 5, 1 << 33]), "b": BitMap64(range(100_000))}
    path, content, descriptors = vector_file(rows)
    store.put_if_absent(f"{TABLE}/{path}", content)
    assert {name: read_vector(store, TABLE, descriptor) for name, descriptor in descriptors.items()} == rows
    assert [descriptors[name]["cardinality"] for name in "ab"] == [3, 100_000]
    assert read_vector(store, TABLE, None) == BitMap64()


def test_damaged_bytes_are_refused(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    path, content, descriptors = vector_file({"a": BitMap64([1, 2, 3])})
    store.put_if_absent(f"{TABLE}/{path}", content[:-6] + b"\x07" + content[-5:])
    with pytest.raises(LakeError, match="damaged"):
        read_vector(store, TABLE, descriptors["a"])
    with pytest.raises(LakeError, match="is at"):
        read_vector(store, TABLE, {**descriptors["a"], "storageType": "p"})


def test_a_vector_file_that_is_cut_or_missing_is_named_with_what_brings_it_back(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    path, content, descriptors = vector_file({"a": BitMap64([1, 2, 3])})
    for size in (None, 0, 3, 20, len(content) - 4, len(content) - 1):
        if size is not None:
            store.overwrite(f"{TABLE}/{path}", content[:size])
        with pytest.raises(LakeError, match=f"{path} is {'missing' if size is None else 'damaged'}") as raised:
            read_vector(store, TABLE, descriptors["a"])
        assert raised.value.remedy == "bring the file back from a copy of the lake, or run cdc snapshot on the table"


def test_base_85_comes_back() -> None:
    content = bytes(range(256))
    assert z85_decode(z85_encode(content)) == content
    assert z85_encode(bytes.fromhex("864fd26fb559f75b")) == "HelloWorld"


class CountingStore(LocalObjectStore):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads = list[str]()

    def get(self, key: str) -> bytes:
        self.reads.append(key)
        return super().get(key)


def test_a_claim_reads_a_file_with_many_vectors_once(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    path, content, descriptors = vector_file({f"file-{number}": BitMap64([number]) for number in range(100)})
    store.put_if_absent(f"{TABLE}/{path}", content)
    state = LakeTableState(version=1)
    state.files.follow({"add": {"path": name, "deletionVector": found}} for name, found in descriptors.items())
    files = LakeFiles(store=store, table=table_of(name="shop.public.people"), state=state, columns=())
    other = replace(files, ending_from=AFTER_ALL)
    for number in range(100):
        for each in (files, other):
            assert dict(each.vectors([f"file-{number}"])) == {f"file-{number}": BitMap64([number])}
    assert len(store.reads) == 1


def test_vector_files_are_kept_up_to_a_limit(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    objects = VectorObjects(store=store, held=OrderedDict())
    for name in "abc":
        store.put_if_absent(name, name.encode() * (30 << 20))
    for name in "aabbcbac":
        assert objects.get(name)[:1] == name.encode()
    assert store.reads == ["a", "b", "c", "a", "c"]


def test_vector_files_that_do_not_fit_into_memory_together_are_read_once(tmp_path: Path) -> None:
    """Files with neighbouring ids have their vectors in files of different claims, because ids are marked anywhere."""
    store, state = CountingStore(tmp_path), LakeTableState(version=1)
    for claim in range(3):
        path, content, descriptors = vector_file({f"file-{number}": BitMap64([1]) for number in range(claim, 30, 3)})
        store.put_if_absent(f"{TABLE}/{path}", content + bytes(30 << 20))
        stats = '{"numRecords":3}'
        state.files.follow(
            {"add": {"path": name, "size": 1, "stats": stats, "deletionVector": found}}
            for name, found in descriptors.items()
        )
    files = LakeFiles(store=store, table=table_of(name="shop.public.people"), state=state, columns=())
    deleted = {f"file-{number}": BitMap64([2]) for number in range(30)}
    actions = rows_commit(files, "CDC UPSERT", 1, "{}", ClaimCounts(), deleted, (), now=NOW, on_step=no_step)
    assert len(store.reads) == 3
    added = {action["add"]["path"]: action["add"] for action in actions if "add" in action}
    assert dict(read_vectors(store, TABLE, added)) == dict.fromkeys(deleted, BitMap64([1, 2]))


@pytest.mark.parametrize("small_file_bytes", [1, 1 << 20])
def test_maintenance_reads_a_file_with_many_vectors_once(tmp_path: Path, small_file_bytes: int) -> None:
    """Files that are not small are each rewritten alone, small ones together."""
    store, table = CountingStore(tmp_path), table_of(name="shop.public.people")
    lake = SparkLake(open_session=no_session, store=store, clock=lambda: NOW, on_step=no_step)
    lake.create_table(table)
    path, content, descriptors = vector_file({f"file-{number}": BitMap64([number]) for number in range(3)})
    store.put_if_absent(f"{TABLE}/{path}", content)
    adds = list[Action]()
    for name, found in descriptors.items():
        rows = io.BytesIO()
        pq.write_table(pa.table({"id": [1, 2, 3]}), rows)
        store.put_if_absent(f"{TABLE}/{name}", rows.getvalue())
        file = {"path": name, "partitionValues": {}, "size": len(rows.getvalue()), "modificationTime": 0}
        adds.append({"add": {**file, "dataChange": True, "stats": '{"numRecords":3}', "deletionVector": found}})
    info = commit_info(operation="CDC UPSERT", user_metadata="{}", read_version=0, now=NOW)
    DeltaLog(store, TABLE).append(1, [info, *adds])
    done = lake.optimize(table, MaintenanceSettings(small_files=2, small_file_bytes=small_file_bytes))
    assert (done.files_before, done.files_after) == (3, 3 if small_file_bytes == 1 else 1)
    assert store.reads.count(f"{TABLE}/{path}") == 1


def no_session() -> SparkSession:
    raise AssertionError
