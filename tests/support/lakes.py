"""Every kind of lake, for the suites that hold all of them to the same promises."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import staging_prefix
from cdc_pipeline.lake.append_or_merge import Upsert
from cdc_pipeline.lake.protocol import Compaction, DataFile, Lake, LakePublication, LakeTable
from cdc_pipeline.lake.session import connect
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import DELETED, STATE
from cdc_pipeline.settings.work import WorkerSettings
from cdc_pipeline.steps import OnStep, no_step
from cdc_pipeline.types import arrow_schema
from tests.support.lake import NOW, RowsById, by_id, lake_table_rows, version
from tests.support.memory_lake import MemoryLake


def spark_lake(
    session: SparkSession,
    store: ObjectStore,
    rows_without_spark: int = 1000,
    upsert: Upsert = "append",
    *,
    on_step: OnStep = no_step,
    now: datetime = NOW,
) -> SparkLake:
    """As a worker has it, whose claims here are all small: Spark searches the table for none of them.

    `rows_without_spark`: 0 for a lake in which Spark searches for each.
    """
    return SparkLake(
        open_session=lambda: session,
        store=store,
        clock=lambda: now,
        on_step=on_step,
        rows_without_spark=rows_without_spark,
        upsert=upsert,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One kind of lake over one bucket. `make` opens it anew, as another process would; `rows` shows hidden ones."""

    store: LocalObjectStore
    make: Callable[[OnStep], Lake]
    rows: Callable[[LakeTable], list[dict[str, object]]]

    def read(self, table: LakeTable) -> RowsById:
        """By id. How a lake keeps its registers is its own business."""
        found = [{name: value for name, value in row.items() if name != STATE} for row in self.rows(table)]
        return by_id(table, found)

    def values(self, table: LakeTable) -> dict[object, tuple[object, ...]]:
        """Name and age of everybody by id."""
        rows = self.read(table).values()
        return {row["id"]: (row["name"], row["age"]) for row in rows if not row.get(DELETED)}


@contextmanager
def memory_arm(store: LocalObjectStore, _request: pytest.FixtureRequest) -> Iterator[Arm]:
    def make(on_step: OnStep) -> MemoryLake:
        return MemoryLake(store=store, clock=lambda: NOW, on_step=on_step)

    yield Arm(store=store, make=make, rows=lambda table: make(no_step).rows(table))


@contextmanager
def spark_arm(store: LocalObjectStore, request: pytest.FixtureRequest, *, upsert: Upsert = "append") -> Iterator[Arm]:
    url: str = request.getfixturevalue("spark_url")
    with ExitStack() as opened:

        def make(on_step: OnStep) -> SparkLake:
            lake = SparkLake(
                open_session=lambda: connect(url),
                store=store,
                clock=lambda: NOW,
                on_step=on_step,
                upsert=upsert,
                rows_without_spark=WorkerSettings().rows_without_spark,
            )
            opened.callback(lake.close)
            return lake

        yield Arm(store=store, make=make, rows=lambda table: lake_table_rows(store, table))


def merge_arm(store: LocalObjectStore, request: pytest.FixtureRequest) -> AbstractContextManager[Arm]:
    """The lake on Spark whose claims are all MERGEd."""
    return spark_arm(store, request, upsert="merge")


def published(
    store: ObjectStore, lake: Lake, table: LakeTable, people: int, snapshot_id: str, *, at: int = 100
) -> tuple[DataFile, ...]:
    """Files of a snapshot with this many people, that nobody sees yet."""
    rows = [{"id": number, "name": f"n{number}", "age": number} for number in range(people)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema(table.schema)), sink)
    key = f"{staging_prefix(table.name, snapshot_id)}/part.parquet"
    store.put_if_absent(key, sink.getvalue().to_pybytes())
    work = Compaction(snapshot_id=snapshot_id, attempt="0-1", staged_keys=(key,), target_files=2, version=version(at))
    return lake.compact(table, work)


def publish_doubled(arm: Arm, lake: Lake, table: LakeTable, people: int, doubled: int) -> int:
    """The lake version with this many people; the first ones of them are there twice, once with an older version."""
    once, again = (
        published(arm.store, lake, table, count, snapshot_id, at=at)
        for count, snapshot_id, at in ((people, "s1", 100), (doubled, "s2", 50))
    )
    return lake.publish(table, LakePublication(snapshot_id="s1", files=(*once, *again), fence_number=0))
