"""A source of each kind with one table, for the suite that holds all of them to the same promises."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.wiring import Pipeline
from tests.support.command_line import query
from tests.support.event_files import NOBODY_LISTENS, EventFolder
from tests.support.mariadb import run_mysql
from tests.support.memory_source import Change, MemoryLog, MemorySource
from tests.support.pipelines import mysql_settings, opened_pipeline, pipeline_settings
from tests.support.streams import database_of, run_sql

_MADE = """
SELECT 'slot', slot_name::text FROM pg_replication_slots WHERE database = current_database()
UNION ALL SELECT 'publication', pubname::text FROM pg_publication
UNION ALL SELECT 'published', tablename::text FROM pg_publication_tables ORDER BY 1, 2
"""


class SourceArm(Protocol):
    """A source with one table `orders (id, note)`, whose pipeline has a metadata store of its own."""

    @property
    def table(self) -> TableName: ...

    def opened(self) -> AbstractContextManager[Pipeline]:
        """The pipeline, as a new process opens it."""

    def commit(self, *changes: Change) -> None:
        """One transaction."""

    def made(self) -> list[Any]:
        """All that set-up makes on the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresArm:
    folder: Path
    url: str
    store_url: str

    def __post_init__(self) -> None:
        run_sql(self.url, "CREATE TABLE orders (id int PRIMARY KEY, note text)")

    @property
    def table(self) -> TableName:
        return TableName(database=database_of(self.url), schema="public", table="orders")

    def opened(self) -> AbstractContextManager[Pipeline]:
        settings = pipeline_settings(self.folder, self.url, [{"name": "public.orders"}], slice_length="1h")
        return opened_pipeline(settings, store_url=self.store_url, spark_url=NOBODY_LISTENS)

    def commit(self, *changes: Change) -> None:
        statements = {
            "i": "INSERT INTO orders VALUES ({id}, '{note}')",
            "u": "UPDATE orders SET note = '{note}' WHERE id = {id}",
            "d": "DELETE FROM orders WHERE id = {id}",
        }
        run_sql(self.url, "; ".join(statements[kind].format(id=id_, note=note) for kind, id_, note in changes))

    def made(self) -> list[Any]:
        return query(self.url, _MADE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlArm:
    """`database`: of MariaDB or MySQL. `name`: of the pipeline, which is unique on the server."""

    folder: Path
    url: str
    database: str
    store_url: str

    def __post_init__(self) -> None:
        run_mysql(self.url, "CREATE TABLE orders (id int PRIMARY KEY, note text)", database=self.database)

    @property
    def table(self) -> TableName:
        return TableName(database="shop", schema=self.database, table="orders")

    def opened(self) -> AbstractContextManager[Pipeline]:
        settings = mysql_settings(self.folder, self.url, self.database, [{"name": "orders"}])
        return opened_pipeline(settings, store_url=self.store_url, spark_url=NOBODY_LISTENS)

    def commit(self, *changes: Change) -> None:
        statements = {
            "i": "INSERT INTO orders VALUES ({id}, '{note}')",
            "u": "UPDATE orders SET note = '{note}' WHERE id = {id}",
            "d": "DELETE FROM orders WHERE id = {id}",
        }
        texts = [statements[kind].format(id=id_, note=note) for kind, id_, note in changes]
        run_mysql(self.url, *texts, database=self.database)

    def made(self) -> list[Any]:
        there = run_mysql(self.url, f"SHOW TABLES IN {self.database} LIKE 'cdc_marker'")
        rows = run_mysql(self.url, f"SELECT pipeline FROM {self.database}.cdc_marker") if there else ()
        return [*map(str, there), *map(str, rows)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesArm:
    """`more`: settings of the source."""

    folder: Path
    store_url: str
    more: dict[str, Any] = field(default_factory=dict)
    transactions: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self._events.write("0/a.jsonl")

    @property
    def _events(self) -> EventFolder:
        table = {"name": "public.orders", "id": ["id"], "columns": {"id": "int", "note": "text"}}
        return EventFolder(folder=self.folder, store_url=self.store_url, tables=(table,), source=self.more)

    @property
    def table(self) -> TableName:
        return TableName.parse("shop.public.orders")

    def opened(self) -> AbstractContextManager[Pipeline]:
        return self._events.opened()

    def commit(self, *changes: Change) -> None:
        self._events.write("0/a.jsonl", *map(json.dumps, debezium_events(next(self.transactions), *changes)))

    def made(self) -> list[Any]:
        """Nothing but the files that are there: their names."""
        return sorted(str(path) for path in (self.folder / "events").rglob("*"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFilesArm:
    """One change file per transaction: CSV of AWS DMS, or Google Datastream's JSON Lines with an order of their own.

    `objects`: where the files lie. `more`: settings of the source and of its object store.
    """

    folder: Path
    store_url: str
    objects: ObjectStore
    source: dict[str, Any]
    more: dict[str, Any] = field(default_factory=dict)
    transactions: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self._put(0, b"")

    @property
    def table(self) -> TableName:
        return TableName.parse("shop.public.orders")

    @contextmanager
    def opened(self) -> Iterator[Pipeline]:
        table = {"name": "shop.public.orders", "id": ["id"], "columns": {"id": "int", "note": "text"}}
        source = {
            "kind": "change_files",
            "path": self.objects.url,
            "folder": "{table}",
            "list_every": "1s",
            **self.source,
        }
        document = {"folder": self.folder, "name": "shop", "lake": "lake", "slice_length": "1h", "tables": [table]}
        settings = Settings.model_validate(document | {"source": source} | self.more)
        with opened_pipeline(settings, store_url=self.store_url, spark_url=NOBODY_LISTENS) as pipeline:
            yield pipeline

    def commit(self, *changes: Change) -> None:
        transaction = next(self.transactions)
        if self.source["format"] == "dms":
            lines = [f"{kind.upper()},{id_},{note}" for kind, id_, note in changes]
            self._put(transaction, "\n".join(["Op,id,note", *lines, ""]).encode())
        else:
            events = [self._event(transaction, ordinal, *change) for ordinal, change in enumerate(changes)]
            self._put(transaction, "".join(json.dumps(event) + "\n" for event in events).encode())

    def made(self) -> list[Any]:
        """Nothing but the files that are there: their names."""
        return [found.key for found in self.objects.list_prefix("")]

    def _put(self, transaction: int, content: bytes) -> None:
        if self.source["format"] == "dms":
            name = f"orders/20260101-{transaction:09d}.csv"
        else:
            name = f"orders/2026/01/01/10/{transaction:02d}/events.jsonl"
        self.objects.put_if_absent(name, content)

    def _event(self, transaction: int, ordinal: int, kind: str, id_: int, note: str | None) -> dict[str, Any]:
        change = {"i": "INSERT", "u": "UPDATE", "d": "DELETE"}[kind]
        place = {"lsn": f"0/{100 * transaction + ordinal:X}", "tx_id": transaction}
        return {
            "source_timestamp": f"2026-01-01T10:00:{transaction:02d}.000Z",
            "source_metadata": {"schema": "public", "table": "orders", "change_type": change, **place},
            "payload": {"id": id_, "note": note},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryArm:
    files: FilesArm
    log: MemoryLog = field(default_factory=MemoryLog)

    @property
    def table(self) -> TableName:
        return self.files.table

    @contextmanager
    def opened(self) -> Iterator[Pipeline]:
        with self.files.opened() as pipeline:
            yield replace(pipeline, source=MemorySource(table=self.table, log=self.log))

    def commit(self, *changes: Change) -> None:
        self.log.entries.append(list(changes))

    def made(self) -> list[Any]:
        return [self.log.is_set_up]


def debezium_events(transaction: int, *changes: Change) -> Iterator[dict[str, Any]]:
    """The events of one transaction of PostgreSQL, as Debezium writes them."""
    source = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "orders", "txId": transaction}
    for ordinal, (kind, id_, note) in enumerate(changes):
        row = {"id": id_, "note": note}
        images = {"before": row, "after": None} if kind == "d" else {"before": None, "after": row}
        place = {"ts_ms": 1_700_000_000_000 + transaction, "lsn": 100 * transaction + ordinal}
        yield {"op": {"i": "c"}.get(kind, kind), **images, "source": source | place}
