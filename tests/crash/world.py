"""A source with three tables, a metadata store and a lake, that outlive the processes which work on them."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import psycopg2

from cdc_pipeline.lake.delta_log import Commit
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.metadata_store.snapshots.records import Snapshot
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.endpoints import Endpoints
from cdc_pipeline.steps import OnStep, no_step
from cdc_pipeline.wiring import LakeFactory, Pipeline, open_pipeline
from snapshot.exports import Export
from snapshot.wiring import snapshot_orchestrator, snapshot_worker
from snapshot.worker import SnapshotWorker
from tests.support.eventually import eventually
from tests.support.memory_lake import MemoryLake
from tests.support.pipelines import consume, pipeline_settings, set_up_and_consume
from tests.support.postgres import fresh_database, fresh_store
from tests.support.streams import database_of, postgres_of, run_sql

CREATE = """
CREATE TABLE things (id int PRIMARY KEY, name text, body text, price numeric(10,2), changed timestamptz);
ALTER TABLE things ALTER body SET STORAGE EXTERNAL;
CREATE TABLE parts (thing int, place text, amount int, PRIMARY KEY (thing, place));
CREATE TABLE notes (body text, amount int, price numeric(10,2));
ALTER TABLE notes REPLICA IDENTITY FULL;
ALTER TABLE notes ALTER body SET STORAGE EXTERNAL;
INSERT INTO notes SELECT repeat('n', 150), n / 2, n FROM generate_series(1, 60) AS n;
INSERT INTO notes SELECT 'twin', 1, NULL FROM generate_series(1, 3);
INSERT INTO things SELECT -n, repeat('n', 150), 'b', n, now() FROM generate_series(1000001, 1000060) AS n
"""
EMPTY_NOTES = "TRUNCATE notes; INSERT INTO notes SELECT repeat('n', 150), n / 2, n FROM generate_series(1, 300) AS n"
"""As many rows as there may have been: the steps of a snapshot depend on the pages."""
THINGS = {"name": "public.things", "update_time": "changed"}
PARTS = {"name": "public.parts", "deletes": "soft", "partition_by": [{"column": "place"}]}
NOTES = {"name": "public.notes"}
MARK = "SELECT pg_logical_emit_message(true, 'cdc_pipeline', 'cut')"
AT_ONCE = 'ALTER DATABASE "{}" SET synchronous_commit = on'
"""The source sends a transaction only when its log is flushed: with the forgetful server's setting, a while later."""
SMALLEST_FILE = 8192
_FOUR = "generate_series(0, 3) AS k"
_LARGE = "repeat('x', 3000)"


def make_lake(objects: ObjectStore, on_step: OnStep) -> MemoryLake:
    return MemoryLake(store=objects, clock=lambda: datetime.now(UTC), on_step=on_step)


def as_opened(pipeline: Pipeline) -> Pipeline:
    return pipeline


@dataclass(slots=True, kw_only=True)
class World:
    """The lake is the fast one, or another that `make_lake` gives; with None, the real one of `spark_url`.

    `with_source`: gives a pipeline another source than that of its settings.
    """

    settings: Settings
    source_url: str
    store_url: str
    spark_url: str = ""
    make_lake: LakeFactory | None = make_lake
    with_source: Callable[[Pipeline], Pipeline] = as_opened
    rounds: int = field(default=0)
    connections: dict[str, Any] = field(default_factory=dict)
    """By URL, and kept: who looks at the world after each of a hundred deaths does so a thousand times."""
    commits: dict[str, list[Commit]] = field(default_factory=dict)
    """By the folder of a Delta log: what `tests.crash.invariants` has read of it."""

    @contextmanager
    def process(self, on_step: OnStep = no_step) -> Iterator[Pipeline]:
        """A process of its own: another owner, its own connections."""
        with open_pipeline(self.settings, self.endpoints, on_step=on_step, make_lake=self.make_lake) as pipeline:
            yield self.with_source(pipeline)

    @property
    def endpoints(self) -> Endpoints:
        return Endpoints(
            source_url=self.source_url,
            metadata_store_url=self.store_url,
            airflow_database_url="",
            spark_url=self.spark_url,
            airflow_url="",
        )

    @property
    def tables(self) -> tuple[TableName, ...]:
        return tuple(table.table for table in self.settings.tables)

    def change(self, *, marks: int = 0) -> None:
        """Some of everything that can happen to rows, in several transactions; cuts wherever a mark lies."""
        self.rounds += 1
        new = 10 * self.rounds
        self._run(
            self.source_url,
            *(["TRUNCATE parts"] if self.rounds % 5 == 0 else []),
            *([EMPTY_NOTES] if self.rounds % 7 == 0 else []),
            f"INSERT INTO notes SELECT {_LARGE}, k / 2, NULL FROM {_FOUR}; INSERT INTO notes VALUES ('twin', 1, NULL)",
            *(f"INSERT INTO things VALUES ({new + k}, 'n{k}', {_LARGE}, 1.5, now())" for k in range(3)),
            f"INSERT INTO parts SELECT {new} + k, CASE k % 2 WHEN 0 THEN 'east' ELSE 'west' END FROM {_FOUR}",
            *([MARK] if marks else []),
            f"UPDATE things SET name = 'changed', changed = now() WHERE id IN ({new}, {new - 10})",
            f"UPDATE things SET id = -id WHERE id = {new + 1}; UPDATE parts SET amount = thing WHERE thing = {new}",
            f"DELETE FROM things WHERE id = {new + 2}; DELETE FROM parts WHERE thing = {new + 1}",
            "UPDATE notes SET amount = amount + 1 WHERE ctid IN (SELECT ctid FROM notes WHERE amount = 1 LIMIT 2)",
            *([MARK] * (marks - 1)),
            "DELETE FROM notes WHERE ctid IN (SELECT ctid FROM notes WHERE amount > 0 LIMIT 2)",
            f"INSERT INTO parts VALUES ({new + 1}, 'west', 7), ({new + 4}, 'east', 7)",
        )

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        return self._run(self.source_url, statement)

    def store_query(self, statement: str) -> list[tuple[Any, ...]]:
        return self._run(self.store_url, statement)

    def forget_everything(self) -> None:
        """Rows of the source stay; publication, slot, metadata store and lake are as before the first set-up."""
        name = postgres_of(self.settings).slot
        self._run(
            self.source_url,
            f'DROP PUBLICATION "{name}"',
            f"SELECT pg_drop_replication_slot('{name}')",
        )
        tables = self.store_query(
            "SELECT string_agg(format('cdc.%I', tablename), ', ') FROM pg_tables"
            " WHERE schemaname = 'cdc' AND tablename <> 'alembic_version'"
        )
        self._run(self.store_url, f"TRUNCATE {tables[0][0]} RESTART IDENTITY CASCADE")
        shutil.rmtree(self.settings.folder / self.settings.lake, ignore_errors=True)

    def held_leases(self) -> list[tuple[Any, ...]]:
        """Of tables and of snapshot tasks."""
        return self.store_query(
            "SELECT owner FROM cdc.lease WHERE expires_at > clock_timestamp() UNION ALL"
            " SELECT slot FROM cdc.snapshot_task WHERE state = 'claimed' AND lease_expires_at > clock_timestamp()"
        )

    def expire_leases(self) -> None:
        self._run(
            self.store_url,
            "UPDATE cdc.lease SET expires_at = clock_timestamp() WHERE expires_at > clock_timestamp()",
            "UPDATE cdc.snapshot_task SET lease_expires_at = clock_timestamp() WHERE state = 'claimed'",
            "UPDATE cdc.resident_worker SET expires_at = clock_timestamp()",
        )

    def bury_the_dead(self) -> None:
        """What time does: leases of the dead expire, and the source notices that their connections are gone."""
        self.expire_leases()
        used = "SELECT 1 FROM pg_replication_slots WHERE database = current_database() AND (active OR temporary)"
        held = "SELECT 1 FROM pg_locks JOIN pg_database AS d ON d.oid = database WHERE locktype = 'advisory'"
        assert eventually(lambda: not self.query(f"{used} UNION ALL {held} AND datname = current_database()"))

    def silence_snapshots(self) -> None:
        """What a quarter of an hour does: the heartbeat of no snapshot is younger."""
        self._run(
            self.store_url,
            *(
                f"UPDATE cdc.{table} SET {column} = {column} - interval '1 hour'"
                for table, column in (
                    ("snapshot", "started_at"),
                    ("snapshot", "finished_at"),
                    ("snapshot_task", "created_at"),
                    ("snapshot_task", "finished_at"),
                    ("snapshot_task", "lease_expires_at"),
                )
            ),
        )

    def leave_store(self) -> None:
        """Closes what this world itself holds open of the metadata store."""
        if self.store_url in self.connections:
            self.connections.pop(self.store_url).close()

    def close(self) -> None:
        while self.connections:
            self.connections.popitem()[1].close()

    def _run(self, url: str, *statements: str) -> list[tuple[Any, ...]]:
        """Each statement is one transaction; the rows of the last, if it has any."""
        if url not in self.connections:
            self.connections[url] = psycopg2.connect(url)
            self.connections[url].autocommit = True
        with self.connections[url].cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []


@contextmanager
def new_world(postgres: PostgresServer, folder: Path) -> Iterator[World]:
    with fresh_database(postgres) as source_url, fresh_store(postgres) as store_url:
        run_sql(source_url, AT_ONCE.format(database_of(source_url)), CREATE)
        settings = pipeline_settings(
            folder,
            source_url,
            [THINGS, PARTS, NOTES],
            source={"stream_partitions": 2},
            slice_length="1d",
            snapshot={"snapshot_file_bytes": SMALLEST_FILE},
        )
        with closing(World(settings=settings, source_url=source_url, store_url=store_url)) as world:
            yield world


@contextmanager
def waiting_world(postgres: PostgresServer, folder: Path) -> Iterator[World]:
    """A world in which every table is live and has slices that wait."""
    with new_world(postgres, folder) as world:
        with world.process() as pipeline:
            set_up_and_consume(pipeline)
            take_snapshot(pipeline, pipeline.table_names())
        register_changes(world)
        yield world


def memory_lake(pipeline: Pipeline) -> MemoryLake:
    assert isinstance(pipeline.lake, MemoryLake)
    return pipeline.lake


def lake_tables(pipeline: Pipeline) -> list[LakeTable]:
    return [pipeline.lake_table(name) for name in pipeline.table_names()]


def apply_all(pipeline: Pipeline) -> None:
    for table in pipeline.table_names():
        pipeline.slice_worker().slice_to_lake(table)


def consume_and_apply(pipeline: Pipeline) -> None:
    consume(pipeline)
    apply_all(pipeline)


def take_snapshot(
    pipeline: Pipeline, tables: Sequence[TableName], *, export: Export | None = None
) -> tuple[Snapshot, ...]:
    """Orchestrator and one worker slot by turns in this thread: every run takes the same steps in the same order."""
    since = pipeline.store.snapshot_history.now()
    turns = _Turns(snapshot_worker(pipeline, pipeline.owner), tables, since)
    return snapshot_orchestrator(pipeline, poll_interval=timedelta(seconds=1), export=export).run(tables, turns)


def register_changes(world: World) -> None:
    """Two slices of each table."""
    world.change(marks=1)
    with world.process() as pipeline:
        consume(pipeline)


def registered_files(world: World) -> list[Path]:
    """Slice files of the first table, by number."""
    paths = world.store_query("SELECT path FROM cdc.slice WHERE path IS NOT NULL AND table_id = 1 ORDER BY number")
    return [world.settings.folder / world.settings.lake / path for (path,) in paths]


def go_on(world: World, on_step: OnStep = no_step) -> None:
    """What a supervisor does after any crash: everything is started again, and runs until nothing waits."""
    world.bury_the_dead()
    with world.process(on_step) as pipeline:
        consume_and_apply(pipeline)


class _Turns(Event):
    """While the orchestrator waits for its poll, the worker slot does every task that is there."""

    def __init__(self, worker: SnapshotWorker, tables: Sequence[TableName], since: datetime) -> None:
        super().__init__()
        self._worker, self._tables, self._since = worker, tables, since

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        self._worker.run(self._tables, self._since, _UntilIdle())
        return False


class _UntilIdle(Event):
    """Set as soon as somebody waits on it."""

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        self.set()
        return True
