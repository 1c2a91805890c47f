"""Files of a table are rewritten without Spark, and the rows stay what they were whatever happens meanwhile."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.decay import Optimization
from cdc_pipeline.lake.deletion_vectors import vector_file
from cdc_pipeline.lake.delta_log import Action, Commit, DeltaLog
from cdc_pipeline.lake.fence import commit_info, fence_action
from cdc_pipeline.lake.file_rewriting import FileRewriting
from cdc_pipeline.lake.file_stats import delta_stats
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.lake.table_ddl import STATS
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import DELETED, VERSION
from cdc_pipeline.settings.work import MaintenanceSettings
from cdc_pipeline.steps import Moment, OnStep, no_step
from tests.support.lake import NOW, lake_table_rows, table_of, version

TABLE = table_of()
KEY = lake_key(TABLE.name)
Rows = list[dict[str, Any]]


class KilledError(Exception):
    pass


def people(*ids: int, age: int = 0) -> Rows:
    return [
        {"id": id_, "name": f"n{id_}", "age": age, VERSION: version(id_), DELETED: False} for id_ in ids
    ]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path)


@pytest.fixture
def log(store: LocalObjectStore) -> DeltaLog:
    lake_of(store).create_table(TABLE)
    return DeltaLog(store, KEY)


def no_session() -> SparkSession:
    raise AssertionError


def lake_of(store: LocalObjectStore, on_step: OnStep = no_step) -> SparkLake:
    return SparkLake(open_session=no_session, store=store, clock=lambda: NOW, on_step=on_step)


def at(place: str, moment: Moment, act: Callable[[], object]) -> OnStep:
    def on_step(name: str, now: Moment) -> None:
        if (name, now) == (place, moment):
            act()

    return on_step


def die() -> None:
    raise KilledError


def add_file(store: LocalObjectStore, path: str, rows: pa.Table, dead: Sequence[int] = ()) -> Action:
    """Returns the `add` action of a new file in which the rows of these indexes are deleted."""
    content = io.BytesIO()
    pq.write_table(rows, content, row_group_size=3)
    store.put_if_absent(f"{KEY}/{path}", content.getvalue())
    stats = delta_stats(pq.read_metadata(content), ("id", VERSION))
    file: Action = {"path": path, "partitionValues": {}, "size": len(content.getvalue()), "modificationTime": 0}
    file |= {"dataChange": True, "stats": stats}
    if dead:
        vector_path, vectors, descriptors = vector_file({path: BitMap64(dead)})
        store.put_if_absent(f"{KEY}/{vector_path}", vectors)
        file |= {"deletionVector": descriptors[path]}
    return file


def commit(
    store: LocalObjectStore, log: DeltaLog, number: int, rows: pa.Table | Rows, dead: Sequence[int] = ()
) -> None:
    info = commit_info(operation="CDC UPSERT", user_metadata="{}", read_version=number - 1, now=NOW)
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
    file = add_file(store, f"part-{number}.parquet", table, dead)
    log.append(number, [info, fence_action(TABLE.app_id, number, NOW), {"add": file}])


def filled(store: LocalObjectStore, log: DeltaLog) -> Rows:
    """Four files with neighbouring ids, two of which have deleted rows."""
    for number in (1, 2, 3, 4):
        ids = range(10 * number, 10 * number + 9)
        commit(store, log, number, people(*reversed(ids)), [0, 4, 8] if number % 2 else ())
    return values(store)


def values(store: LocalObjectStore) -> Rows:
    return sorted(lake_table_rows(store, TABLE), key=lambda row: int(row["id"]))


def last_commit(log: DeltaLog) -> Commit:
    found = log.read(log.latest_version() or 0)
    assert found is not None
    return found


def test_small_files_become_one_sorted_file_without_deleted_rows(store: LocalObjectStore, log: DeltaLog) -> None:
    before, fence = filled(store, log), lake_of(store).read_fence(TABLE)
    done = lake_of(store).optimize(TABLE)
    assert (done.files_before, done.files_after, done.left, len(before)) == (4, 1, 0, 30)
    assert values(store) == before
    last = last_commit(log)
    (added,) = last.of_kind("add")
    assert {file["path"] for file in last.of_kind("remove")} == {f"part-{number}.parquet" for number in (1, 2, 3, 4)}
    assert not any(file["dataChange"] for file in (added, *last.of_kind("remove")))
    stats = json.loads(added["stats"])
    assert (stats["numRecords"], stats["minValues"]["id"], stats["maxValues"]["id"]) == (30, 11, 48)
    found = pq.read_table(store.filesystem()[1] + f"/{KEY}/{added['path']}")
    assert found["id"].to_pylist() == [row["id"] for row in before]
    after = lake_of(store).read_fence(TABLE)
    assert fence is not None
    assert after is not None
    assert (after.number, after.lake_version, last.of_kind("txn")) == (fence.number, fence.lake_version + 1, [])


def test_a_users_list_of_columns_with_statistics_leaves_a_rewritten_file_those_of_the_id(
    store: LocalObjectStore, log: DeltaLog
) -> None:
    filled(store, log)
    metadata, info = log.metadata(0), commit_info(operation="SET", user_metadata="{}", read_version=4, now=NOW)
    listed = {**metadata, "configuration": {**metadata["configuration"], STATS: "name"}}
    log.append(5, [info, {"metaData": listed}])
    lake_of(store).optimize(TABLE)
    (added,) = last_commit(log).of_kind("add")
    assert {"id", "name", VERSION} <= json.loads(added["stats"])["minValues"].keys()


def test_nothing_is_committed_where_nothing_has_decayed(store: LocalObjectStore, log: DeltaLog) -> None:
    filled(store, log)
    assert lake_of(store).optimize(TABLE, MaintenanceSettings()) == Optimization()
    lake_of(store).optimize(TABLE)
    assert lake_of(store).optimize(TABLE) == Optimization()
    assert log.latest_version() == 5


def test_a_run_of_slices_looks_again_only_after_some_versions(store: LocalObjectStore, log: DeltaLog) -> None:
    lake, need = lake_of(store), MaintenanceSettings(small_files=3)
    filled(store, log)
    assert lake.optimize(TABLE, need, claimed_at=4).files_before == 4
    looked = []
    for number in (6, 7, 8, 10):
        commit(store, log, number, people(number))
        looked.append(lake.optimize(TABLE, need, claimed_at=number).files_before)
    assert looked == [0, 0, 4, 0]


def test_who_loses_the_race_changes_nothing(store: LocalObjectStore, log: DeltaLog) -> None:
    filled(store, log)
    rival = at("lake_table.optimize", Moment.BEFORE, lambda: commit(store, log, 5, people(99)))
    assert lake_of(store, rival).optimize(TABLE).files_before == 0
    assert (log.latest_version(), len(values(store))) == (5, 31)
    lake = lake_of(store)
    assert (lake.optimize(TABLE).files_before, len(values(store))) == (5, 31)


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
@pytest.mark.parametrize("place", ["lake_files.write", "lake_table.optimize"])
def test_a_run_that_is_killed_leaves_the_rows_as_they_were(
    store: LocalObjectStore, log: DeltaLog, place: str, moment: Moment
) -> None:
    before = filled(store, log)
    with pytest.raises(KilledError):
        lake_of(store, at(place, moment, die)).optimize(TABLE)
    assert values(store) == before
    lake_of(store).optimize(TABLE)
    assert (values(store), log.latest_version()) == (before, 5)


def test_a_damaged_file_is_named_by_one_error_and_nothing_is_committed(store: LocalObjectStore, log: DeltaLog) -> None:
    filled(store, log)
    before = log.latest_version()
    damaged = next(iter(log.active_files(before or 0).values()))["path"]
    store.overwrite(f"{KEY}/{damaged}", b"PAR1 no Parquet PAR1")
    with pytest.raises(LakeError, match="cannot be rewritten: ArrowInvalid"):
        lake_of(store).optimize(TABLE)
    assert log.latest_version() == before


def test_a_file_whose_rows_are_all_deleted_leaves_no_file(store: LocalObjectStore, log: DeltaLog) -> None:
    commit(store, log, 1, people(1, 2), [0, 1])
    commit(store, log, 2, people(3), [0])
    done = lake_of(store).optimize(TABLE)
    assert (done.files_before, done.files_after, values(store)) == (2, 0, [])


def test_a_column_that_a_file_lacks_is_null_and_one_of_another_type_stays_apart(
    store: LocalObjectStore, log: DeltaLog
) -> None:
    commit(store, log, 1, people(1))
    commit(store, log, 2, [{name: value for name, value in row.items() if name != "age"} for row in people(2)])
    narrow = pa.Table.from_pylist(people(3, 4), pa.schema({"id": pa.int32(), "name": pa.string(), "age": pa.int32()}))
    commit(store, log, 3, narrow)
    commit(store, log, 4, people(5))
    before = values(store)
    done = lake_of(store).optimize(TABLE)
    assert (done.files_before, done.files_after) == (2, 1)
    assert values(store) == before


def test_files_that_do_not_fit_into_memory_together_are_copied_one_by_one(
    store: LocalObjectStore, log: DeltaLog
) -> None:
    whole = add_file(store, "whole.parquet", pa.Table.from_pylist(people(*range(9, 0, -1))), [0, 4, 8])
    metadata = log.metadata(0)
    rewriting = FileRewriting(store=store, table=TABLE, metadata=metadata, folder=f"{KEY}/new", most_held_bytes=1)
    done = rewriting.rewrite([whole])
    (file,) = done.added
    rows = pq.read_table(f"{store.filesystem()[1]}/{file.key}")
    assert (rows["id"].to_pylist(), file.rows, done.removed) == ([8, 7, 6, 4, 3, 2], 6, [whole])


@pytest.mark.parametrize("most_held_bytes", [2 << 20, 1 << 30])
def test_a_run_of_deleted_rows_leaves_few_full_row_groups_with_their_statistics(
    store: LocalObjectStore, log: DeltaLog, most_held_bytes: int
) -> None:
    """Many of the batches that are read have no live row; no row group must come of that."""
    count, dead = 200_000, range(60_000, 140_000)
    rows = pa.table({"id": pa.array(range(count), pa.int64()), VERSION: [version(1)] * count})
    path = f"big-{most_held_bytes}.parquet"
    content = io.BytesIO()
    pq.write_table(rows, content)
    store.put_if_absent(f"{KEY}/{path}", content.getvalue())
    vector_path, vectors, descriptors = vector_file({path: BitMap64(dead)})
    store.put_if_absent(f"{KEY}/{vector_path}", vectors)
    file: Action = {"path": path, "partitionValues": {}, "size": 1, "stats": "{}", "deletionVector": descriptors[path]}
    rewriting = FileRewriting(
        store=store,
        table=TABLE,
        metadata=log.metadata(0),
        folder=f"{KEY}/optimized-{most_held_bytes}",
        most_held_bytes=most_held_bytes,
    )
    (written,) = rewriting.rewrite([file]).added
    footer = pq.read_metadata(io.BytesIO(store.get(written.key)))
    groups = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    assert sum(groups) == written.rows == count - len(dead)
    assert all(groups)
    assert len(groups) == (1 if most_held_bytes > 2 << 20 else 3)
    stats = json.loads(written.stats)
    assert (stats["minValues"]["id"], stats["maxValues"]["id"], stats["nullCount"]["id"]) == (0, count - 1, 0)


def test_a_row_group_without_rows_hides_no_statistics() -> None:
    rows = pa.table({"id": pa.array([3, 5], pa.int64())})
    content = io.BytesIO()
    with pq.ParquetWriter(content, rows.schema) as writer:
        for part in (rows, rows.slice(0, 0)):
            writer.write_batch(part.to_batches()[0] if part.num_rows else pa.RecordBatch.from_pylist([], rows.schema))
    stats = json.loads(delta_stats(pq.read_metadata(content), ("id",)))
    assert (stats["minValues"], stats["maxValues"], stats["nullCount"]) == ({"id": 3}, {"id": 5}, {"id": 0})
