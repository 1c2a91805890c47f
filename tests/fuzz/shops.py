"""The shop on a server of each kind, with a pipeline over it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

import psycopg2
import pymysql

from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.settings import Settings
from cdc_pipeline.wiring import Pipeline
from snapshot.exports import Export
from tests.crash.world import AT_ONCE, World, as_opened
from tests.fuzz import mysql_changes, mysql_values, postgres_changes, postgres_values
from tests.support.mariadb import connected, fresh_mysql_database
from tests.support.pipelines import mysql_settings, pipeline_settings
from tests.support.postgres import fresh_database, fresh_store
from tests.support.streams import database_of, run_sql

_POSTGRES_COLUMNS = """
SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = '{}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_MYSQL_COLUMNS = """
SELECT column_name, column_type FROM information_schema.columns
WHERE table_schema = database() AND table_name = '{}' ORDER BY ordinal_position
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How the pipeline keeps the tables of a shop. With a `spark_url` the lake is that server's, with histories."""

    dropped_columns: str
    stream_partitions: int
    spark_url: str = ""
    worker: Mapping[str, Any] = field(default_factory=dict)

    def tables(self, names: Sequence[str], keyless: str) -> list[dict[str, Any]]:
        history = bool(self.spark_url)
        return [
            {"name": name, "dropped_columns": self.dropped_columns, "history": history and not name.endswith(keyless)}
            for name in names
        ]


class Changes(Protocol):
    """Makes lines of a script."""

    def change(self) -> str:
        """One transaction, or a statement of its own."""
        ...


class Shop(Protocol):
    """A source with three tables that are registered, and the world of its pipeline."""

    @property
    def world(self) -> World: ...

    @property
    def saved(self) -> list[str]:
        """The metadata stores that were saved."""
        ...

    @property
    def is_copied(self) -> bool:
        """Whether the pipeline can copy its tables."""
        ...

    @property
    def begun(self) -> dict[str, int | None]:
        """The tables whose history was switched on, with the version of the lake's table at that time."""
        ...

    @property
    def exports(self) -> Mapping[str, Export]:
        """The newest of each table."""
        ...

    def export(self, table: str) -> Export | None:
        """Exports the table's rows into files; None where the pipeline copies the table itself."""
        ...

    def changes(self, chance: Random) -> Changes: ...

    def execute(self, line: str) -> None:
        """What cannot be done any more, since lines before it are gone, is not done."""
        ...

    def bury_the_dead(self) -> None:
        """What time does after the death of a process."""
        ...

    def arrive(self) -> None:
        """Everything that the source wrote is there to be read."""
        ...

    def may_stand(self, reason: str) -> bool:
        """Whether a table may be stale for ever, since the source has deleted changes of it that were not read."""
        ...

    def columns(self, table: str) -> list[tuple[str, str]]:
        """Name and type of each column that the source's catalogue has now."""
        ...

    def may_show(self, table: str, shown: set[str]) -> bool:
        """Whether a lake that equals the source may show these columns."""
        ...

    def rows(self, table: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """These columns of all rows, with values as the lake has them."""
        ...

    def plain(self, value: Any) -> Any:
        """A value of the lake or of the source, hashable, and equal for what both sides mean by it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopOnDatabase:
    """What the shops have in common whose tables the pipeline can copy."""

    world: World
    exports: Mapping[str, Export] = field(default_factory=dict)
    saved: list[str] = field(default_factory=list)
    begun: dict[str, int | None] = field(default_factory=dict)

    @property
    def is_copied(self) -> bool:
        return True

    def export(self, table: str) -> Export | None:
        del table
        return None

    def arrive(self) -> None:
        return

    def may_stand(self, reason: str) -> bool:
        del reason
        return False

    def columns(self, table: str) -> list[tuple[str, str]]:
        raise NotImplementedError

    def may_show(self, table: str, shown: set[str]) -> bool:
        return shown == {name for name, _ in self.columns(table)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopOnPostgres(ShopOnDatabase):
    """Implements `Shop`."""

    def changes(self, chance: Random) -> Changes:
        return postgres_changes.PostgresChanges(chance=chance, query=self.world.query)

    def execute(self, line: str) -> None:
        try:
            self.world.query(line)
        except psycopg2.Error:
            self.world.query("ROLLBACK")

    def bury_the_dead(self) -> None:
        self.world.bury_the_dead()

    def columns(self, table: str) -> list[tuple[str, str]]:
        return [(str(name), str(type_)) for name, type_ in self.world.query(_POSTGRES_COLUMNS.format(table))]

    def rows(self, table: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
        selected = ", ".join(
            postgres_values.compared(name, type_) for name, type_ in self.columns(table) if name in names
        )
        return self.world.query(f"SELECT {selected} FROM {table}")

    def plain(self, value: Any) -> Any:
        return postgres_values.plain(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopOnMysql(ShopOnDatabase):
    """Implements `Shop`. `connection` commits each statement, and waits for no lock longer than a second."""

    connection: Any

    def changes(self, chance: Random) -> Changes:
        return mysql_changes.MysqlChanges(chance=chance, keeps_ids=bool(self.world.spark_url), query=self.query)

    def query(self, statement: str) -> Sequence[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def execute(self, line: str) -> None:
        """Of several statements, those that work are done."""
        for statement in line.split("; "):
            try:
                self.query(statement)
            except pymysql.MySQLError:
                continue

    def bury_the_dead(self) -> None:
        self.world.expire_leases()

    def columns(self, table: str) -> list[tuple[str, str]]:
        return [(str(name), str(type_)) for name, type_ in self.query(_MYSQL_COLUMNS.format(table))]

    def rows(self, table: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
        selected = ", ".join(mysql_values.compared(name, type_) for name, type_ in self.columns(table) if name in names)
        return list(self.query(f"SELECT {selected} FROM {table}"))

    def plain(self, value: Any) -> Any:
        return postgres_values.plain(mysql_values.without_zone(value))


@contextmanager
def postgres_shop(postgres: PostgresServer, folder: Path, kept: Kept) -> Iterator[ShopOnPostgres]:
    with fresh_database(postgres) as source_url, fresh_store(postgres) as store_url:
        run_sql(source_url, AT_ONCE.format(database_of(source_url)), *postgres_changes.CREATE)
        names = [f"public.{table}" for table in postgres_changes.TABLES]
        settings = pipeline_settings(
            folder,
            source_url,
            kept.tables(names, postgres_changes.KEYLESS),
            source={"stream_partitions": kept.stream_partitions},
            slice_length="1d",
            worker=kept.worker,
        )
        with registered(settings, store_url, source_url=source_url, spark_url=kept.spark_url) as world:
            world.query("SET lock_timeout = '500ms'")
            yield ShopOnPostgres(world=world)


@contextmanager
def mysql_shop(url: str, postgres: PostgresServer, folder: Path, kept: Kept) -> Iterator[ShopOnMysql]:
    """On the server of that URL; `postgres` has the metadata store."""
    with (
        fresh_mysql_database(url) as database,
        fresh_store(postgres) as store_url,
        closing(connected(url, database)) as connection,
    ):
        connection.autocommit(value=True)
        with connection.cursor() as cursor:
            for statement in (*_SESSION, *mysql_changes.CREATE):
                cursor.execute(statement)
        settings = mysql_settings(
            folder,
            url,
            database,
            kept.tables(list(mysql_changes.AGAIN), mysql_changes.KEYLESS),
            source={"stream_partitions": kept.stream_partitions},
            slice_length="1d",
            worker=kept.worker,
        )
        with registered(settings, store_url, source_url=url, spark_url=kept.spark_url) as world:
            yield ShopOnMysql(world=world, connection=connection)


_SESSION = (
    "SET time_zone = '+00:00'",
    mysql_changes.STRICT,
    "SET lock_wait_timeout = 1",
    "SET innodb_lock_wait_timeout = 1",
)


@contextmanager
def registered(
    settings: Settings,
    store_url: str,
    *,
    source_url: str = "",
    spark_url: str,
    with_source: Callable[[Pipeline], Pipeline] = as_opened,
) -> Iterator[World]:
    """A world whose source is set up. With a `spark_url` its lake is that server's."""
    world = World(
        settings=settings, source_url=source_url, store_url=store_url, spark_url=spark_url, with_source=with_source
    )
    if spark_url:
        world.make_lake = None
    with closing(world):
        with world.process() as pipeline:
            pipeline.source_setup().set_up()
        yield world
