"""A source, a metadata store and a lake on Spark, whose processes die by a signal, and come back."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import TypeVar

from cdc_pipeline.errors import CdcError, LeaseBusy, SnapshotError, StaleEpoch
from cdc_pipeline.lake.session import connect
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.metadata_store.states import SnapshotState
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.steps import OnStep
from cdc_pipeline.wiring import utc_now
from tests.chaos.victim import Order, Victim, started
from tests.crash.failpoint import Site
from tests.crash.world import AT_ONCE, MARK, World, take_snapshot
from tests.support.pipelines import consume, pipeline_settings
from tests.support.postgres import fresh_database, fresh_store
from tests.support.s3 import BUCKET, REGION
from tests.support.streams import database_of, run_sql

LEASE = timedelta(seconds=4)
TIMEOUT_SECONDS = 120
NAMES = ("one", "two", "bag")
CREATE = "CREATE TABLE {0} (id int{1}, name text, amount numeric(10,2), changed timestamptz)"
WHOLE_OLD_ROWS = "ALTER TABLE bag REPLICA IDENTITY FULL"
FILL = "INSERT INTO {0} SELECT -1000000 - n, repeat('n', 150), n, now() FROM generate_series(1, 100) AS n"
_Result = TypeVar("_Result")


@dataclass(slots=True, kw_only=True)
class ChaosWorld(World):
    """Three tables take turns: a round costs what one table costs. In the bag, what comes twice is there twice."""

    changes: int = 0

    def turn(self) -> TableName:
        """The next table, changed in three cuts with rows in each."""
        table = self.next_table()
        self.turn_of(table)
        return table

    def next_table(self) -> TableName:
        self.rounds += 1
        return self.tables[self.rounds % len(self.tables)]

    def turn_of(self, table: TableName) -> None:
        """Other rows at every call."""
        self.changes += 1
        name, new = table.table, 10 * self.changes
        columns = f"{name} (id, name, amount, changed)"
        self._run(
            self.source_url,
            f"INSERT INTO {columns} SELECT {new} + k, 'n' || k, 1.5, now() FROM generate_series(0, 5) AS k",
            MARK,
            f"UPDATE {name} SET amount = amount + 1, changed = now() WHERE id IN ({new}, {new + 1}, {new - 29})",
            f"DELETE FROM {name} WHERE id = {new + 2}",
            MARK,
            f"UPDATE {name} SET id = -id WHERE id = {new + 3}",
            f"INSERT INTO {columns} VALUES ({new + 2}, 'again', NULL, now())",
        )

    def kill(self, verb: str, table: TableName, site: Site, *, seconds: float = 0) -> None:
        """A process that takes the verb dies at the site, or so many seconds behind it, unless it ends before."""
        victim = self.victim(verb, table, site, seconds=seconds)
        try:
            is_killed = victim.is_killed()
            assert is_killed or (seconds and victim.process.exitcode == 0), self.said
        finally:
            end(victim)

    @property
    def said(self) -> str:
        """By all victims so far."""
        return (self.settings.folder / "victims.log").read_text()

    def victim(
        self, verb: str, table: TableName, site: Site, by: signal.Signals = signal.SIGKILL, *, seconds: float = 0
    ) -> Victim:
        order = Order(
            settings=self.settings,
            endpoints=self.endpoints,
            verb=verb,
            table=table,
            site=site,
            signal=by,
            seconds=seconds,
            log=self.settings.folder / "victims.log",
        )
        return started(order)

    def register(self) -> None:
        def run() -> None:
            with self.process() as pipeline:
                consume(pipeline)

        patiently(run)

    def apply(self, table: TableName) -> None:
        def run() -> None:
            with self.process() as pipeline:
                pipeline.slice_worker().slice_to_lake(table)

        patiently(run)

    def snapshot(self, table: TableName) -> None:
        def run() -> None:
            with self.process() as pipeline:
                (found,) = take_snapshot(pipeline, [table])
            assert found.state is SnapshotState.PUBLISHED, found.error

        patiently(run)

    def recover(self, table: TableName) -> timedelta:
        """New processes until nothing waits; how long that took, the wait for the dead one's lease included."""
        began = time.monotonic()
        self.register()
        self.apply(table)
        return timedelta(seconds=time.monotonic() - began)


def patiently(run: Callable[[], _Result]) -> _Result:
    """What a supervisor does: it starts again whatever ended because somebody else was there, or was away."""
    deadline, pause = time.monotonic() + TIMEOUT_SECONDS, Event()
    while True:
        try:
            return run()
        except CdcError as error:
            waits = error.retryable or isinstance(error, LeaseBusy | StaleEpoch | SnapshotError)
            if not waits or time.monotonic() > deadline:
                raise
        pause.wait(0.2)


@contextmanager
def chaos_world(postgres: PostgresServer, folder: Path, spark_url: str, s3_endpoint: str) -> Iterator[ChaosWorld]:
    """Every table published, in a lake on S3. Those who recover share one Spark session, which saves opening it."""
    with fresh_database(postgres) as source_url, fresh_store(postgres) as store_url:
        run_sql(source_url, AT_ONCE.format(database_of(source_url)))
        for name in NAMES:
            run_sql(source_url, CREATE.format(name, "" if name == "bag" else " PRIMARY KEY"), FILL.format(name))
        run_sql(source_url, WHOLE_OLD_ROWS)
        settings = world_settings(folder, source_url, s3_endpoint)
        session = connect(spark_url)

        def make_lake(objects: ObjectStore, on_step: OnStep) -> SparkLake:
            return SparkLake(open_session=lambda: session, store=objects, clock=utc_now, on_step=on_step)

        world = ChaosWorld(
            settings=settings, source_url=source_url, store_url=store_url, spark_url=spark_url, make_lake=make_lake
        )
        try:
            with world.process() as pipeline:
                pipeline.source_setup().set_up()
            world.register()
            for table in world.tables:
                world.snapshot(table)
            yield world
        finally:
            world.close()
            session.stop()


def world_settings(folder: Path, source_url: str, s3_endpoint: str) -> Settings:
    return pipeline_settings(
        folder,
        source_url,
        [{"name": f"public.{name}", "update_time": "changed"} for name in NAMES],
        source={"stream_partitions": 2},
        slice_length="1d",
        lake=f"s3://{BUCKET}/{database_of(source_url)}",
        object_store={"endpoint": s3_endpoint, "region": REGION, "path_style": True},
        worker={"lease": f"{LEASE.total_seconds():.0f}s"},
    )


def end(victim: Victim) -> None:
    """Whatever became of it."""
    if victim.process.exitcode is None:
        os.kill(victim.pid, signal.SIGKILL)
        victim.process.join()
