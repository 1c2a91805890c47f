"""Ways to bring a slice into a table of the lake. Each arm has a copy of the table; all read the same slices."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from benchmarks.arms import Arm
from benchmarks.bench import Bench
from benchmarks.slice_files import SCHEMA, MadeSlice, SliceMaker, claim_work
from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import table_at
from cdc_pipeline.lake.session import connect, untuned_session
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import DELETED, OPERATION, VERSION, TableSchema
from cdc_pipeline.wiring import Pipeline
from tests.support.delta_rows import delta_url
from tests.support.lake import table_of
from tests.support.pipelines import opened_pipeline, pipeline_settings
from tests.support.postgres import fresh_store

NAMES = ", ".join((*SCHEMA.names, VERSION))
WITH_VECTORS = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
TUNED = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
}


class WrongRowsError(Exception):
    """A table does not hold the rows that it must hold."""


@dataclass(kw_only=True)
class ClaimWorld:
    """Where the arms of one contest live: one object store, one driver, and the slices of this round."""

    bench: Bench
    opened: ExitStack
    rows: int
    folder: Path
    slices: list[MadeSlice] = field(default_factory=list)
    """Of this round."""

    @property
    def objects(self) -> LocalObjectStore:
        return LocalObjectStore(self.folder / "lake")

    def session(self, *, tuned: bool = True) -> SparkSession:
        url = self.bench.spark_url
        session = connect(url) if tuned else untuned_session(url)
        self.opened.callback(session.stop)
        return session

    def next_slices(self, maker: SliceMaker, changes: int, number: int = 1) -> None:
        """The slices of a round, before its first arm."""
        self.slices = [maker.make(changes) for _ in range(number)]

    def target(self, table: LakeTable) -> str:
        return table_at(self.objects.spark_url(lake_key(table.name)))

    def slice_urls(self) -> list[str]:
        return [self.objects.spark_url(made.content.key) for made in self.slices]

    def changes(self) -> int:
        return sum(made.content.rows for made in self.slices)


def filling(rows: int) -> str:
    return f"""
        SELECT id + 1 AS id, CAST(id % 1000 AS INT) AS customer, repeat(CAST(id AS STRING), 8) AS note, id AS amount,
               timestamp'2024-01-01' AS at, '' AS {VERSION}
        FROM range(0, {rows}, 1, 4)"""


def content_of(session: SparkSession, target: str) -> tuple[object, ...]:
    """The number of rows, and a sum over each row's hash."""
    query = f"SELECT count(*), sum(CAST(xxhash64({NAMES}) AS DECIMAL(38))) FROM {target}"
    return tuple(session.sql(query).collect()[0])


def our_pipeline(world: ClaimWorld, more: Mapping[str, Any]) -> Pipeline:
    """Its lake is that of the contest, as its settings say."""
    store_url = world.opened.enter_context(fresh_store(world.bench.postgres))
    settings = pipeline_settings(world.folder, store_url, [{"name": "public.changes"}], **more)
    return world.opened.enter_context(opened_pipeline(settings, store_url=store_url, spark_url=world.bench.spark_url))


def filled_table(
    world: ClaimWorld,
    pipeline: Pipeline,
    name: str,
    *,
    schema: TableSchema = SCHEMA,
    deletes: Literal["hard", "soft"] = "hard",
    keeps_history: bool = False,
) -> LakeTable:
    """Columns other than those of SCHEMA are NULL."""
    table = table_of(schema, name=f"bench.public.{name}", deletes=deletes, keeps_history=keeps_history)
    pipeline.lake.create_table(table)
    insert = f"INSERT INTO {world.target(table)} BY NAME SELECT *, false AS {DELETED} FROM ({filling(world.rows)})"
    world.session().sql(insert).collect()
    return table


def our_arms(
    world: ClaimWorld,
    *,
    claim: Callable[[Pipeline, LakeTable], Callable[[], int]] | None = None,
    check: Callable[[LakeTable], Callable[[], object]] | None = None,
) -> tuple[Arm, ...]:
    """One for the default settings and one for each override.

    `claim`: makes what is inside the clock; else one claim. `check`: makes the check; else that of the content.
    """
    arms = []
    for number, (name, more) in enumerate(world.bench.variants("worker", "driver").items()):
        pipeline = our_pipeline(world, more)
        table = filled_table(world, pipeline, f"ours_{number}")
        run = one_claim(world, pipeline, table) if claim is None else claim(pipeline, table)
        arms.append(Arm(name=name, run=run, check=checked(world, table) if check is None else check(table)))
    return tuple(arms)


def one_claim(world: ClaimWorld, pipeline: Pipeline, table: LakeTable) -> Callable[[], int]:
    return lambda: pipeline.lake.upsert(table, claim_work(world.slices)).counts.read


def checked(world: ClaimWorld, table: LakeTable) -> Callable[[], object]:
    session = world.session()
    return lambda: content_of(session, world.target(table))


def append_arm(world: ClaimWorld, name: str = "append") -> Arm:
    """The same rows into an equal table, without looking at what is there: the least that any engine must do."""
    pipeline = our_pipeline(world, {})
    table = filled_table(world, pipeline, name)
    session, target, appended = world.session(), world.target(table), list[int]()
    url = world.objects.spark_url(lake_key(table.name))

    def run() -> int:
        rows = session.read.parquet(*world.slice_urls()).selectExpr(*SCHEMA.names, VERSION, f"false AS {DELETED}")
        rows.write.format("delta").mode("append").save(url)
        appended.append(world.changes())
        return world.changes()

    def check() -> None:
        found, expected = content_of(session, target)[0], world.rows + sum(appended)
        if found != expected:
            message = f"the append-only table holds {found} rows of {expected}"
            raise WrongRowsError(message)

    return Arm(name=name, run=run, check=check)


def documented_arm(world: ClaimWorld, *, tuned: bool) -> Arm:
    """Delta's documentation: the latest change of each id by a window, then MERGE with SET * and INSERT *.

    By default all settings are as they come. Tuned: deletion vectors, two partitions, no adaptive execution.
    """
    name = "documentation's MERGE, tuned" if tuned else "documentation's MERGE"
    table = table_of(SCHEMA, name=f"bench.public.documented_{'tuned' if tuned else 'default'}")
    session, target = world.session(tuned=False), world.target(table)
    for option, value in TUNED.items() if tuned else ():
        session.conf.set(option, value)
    session.sql(f"CREATE TABLE {target} USING delta {WITH_VECTORS if tuned else ''} AS {filling(world.rows)}").collect()

    def run() -> int:
        for url in world.slice_urls():
            session.sql(documented_merge(target, url)).collect()
        return world.changes()

    return Arm(name=name, run=run, check=checked(world, table))


def documented_merge(target: str, url: str) -> str:
    return f"""
        MERGE INTO {target} AS t
        USING (SELECT * FROM (
                   SELECT {NAMES}, {OPERATION}, row_number() OVER (PARTITION BY id ORDER BY {VERSION} DESC) AS place
                   FROM parquet.`{url}`) WHERE place = 1) AS s
        ON t.id = s.id
        WHEN MATCHED AND s.{OPERATION} = 'd' THEN DELETE
        WHEN MATCHED THEN UPDATE SET *
        WHEN NOT MATCHED THEN INSERT *"""


def deltalake_arm(world: ClaimWorld) -> Arm:
    """The merge of the package `deltalake`, without Spark. `streamed_exec` off lets it skip files by their ids."""
    table = table_of(SCHEMA, name="bench.public.deltalake")
    world.session(tuned=False).sql(f"CREATE TABLE {world.target(table)} USING delta AS {filling(world.rows)}").collect()
    url = delta_url(world.objects, lake_key(table.name))

    def run() -> int:
        latest = latest_of([made.events for made in world.slices])
        merge = DeltaTable(url).merge(
            latest, predicate="t.id = s.id", source_alias="s", target_alias="t", streamed_exec=False
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        return world.changes()

    return Arm(name="deltalake's merge", run=run, check=checked(world, table))


def latest_of(events: Sequence[pa.Table]) -> pa.Table:
    """The last change of each id, with the columns of the lake. Later changes stand later."""
    changes = pa.concat_tables(events).select([*SCHEMA.names, VERSION])
    places = changes.append_column("place", pa.array(range(changes.num_rows), pa.int64()))
    kept = places.group_by("id").aggregate([("place", "max")])["place_max"]
    return changes.take(kept)
