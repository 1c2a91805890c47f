"""A shop whose changes come as events, in files or by a stream."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.settings import Settings
from snapshot.exports import Export
from snapshot.wiring import export_at
from tests.crash.world import World
from tests.fuzz.arriving import WRITERS, Arriving
from tests.fuzz.event_changes import NEW_COLUMNS, ON_THE_WAY, EventChanges
from tests.fuzz.event_log import DATABASE, KEYLESS, SCHEMA, EventLog, LoggedTable, Statement
from tests.fuzz.event_sources import EventSource, SourceKind, Wording
from tests.fuzz.postgres_values import plain
from tests.fuzz.shops import registered
from tests.support.postgres import fresh_store
from tests.support.source_values import expected


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopOnEvents:
    """Implements `Shop`."""

    world: World
    log: EventLog
    wording: Wording
    arriving: Arriving
    verbs: Sequence[str]
    as_of: Callable[[int], str]
    exports: dict[str, Export] = field(default_factory=dict)
    saved: list[str] = field(default_factory=list)
    begun: dict[str, int | None] = field(default_factory=dict)

    @property
    def is_copied(self) -> bool:
        return False

    def export(self, table: str) -> Export | None:
        """As of a position where the order is in the events; else the rows are older than all that the stream has."""
        found = self.log.tables[table]
        if not found.key:
            return None
        columns = {**found.columns, **NEW_COLUMNS, **dict.fromkeys(found.gone)}
        rows = [{column: row.get(column) for column in columns} for row in found.rows]
        exports = self.world.settings.folder / "exports"
        exports.mkdir(exist_ok=True)
        number = len(list(exports.iterdir()))
        suffix = list(WRITERS)[number % len(WRITERS)] if rows else ".csv"
        content = WRITERS[suffix](rows) if rows else ",".join(f'"{column}"' for column in columns).encode()
        path = exports / f"{number}-{table}{suffix}"
        path.write_bytes(content)
        self.exports[table] = export_at(str(path), self.as_of(self.log.settled))
        return self.exports[table]

    def changes(self, chance: Random) -> EventChanges:
        return EventChanges(chance=chance, log=self.log, partitions=self.wording.partitions, verbs=self.verbs)

    def execute(self, line: str) -> None:
        statements: list[Statement] = json.loads(line)
        verb, *rest = statements[0]
        if verb in ON_THE_WAY:
            getattr(self.arriving, verb)(*rest)
        else:
            changes = self.log.run(statements)
            self.arriving.send([line for change in changes for line in self.wording.lines(change)])

    def bury_the_dead(self) -> None:
        self.world.expire_leases()

    def arrive(self) -> None:
        self.arriving.flow_all()

    def may_stand(self, reason: str) -> bool:
        return self.arriving.has_expired and "begin: kept" in reason

    def may_show(self, table: str, shown: set[str]) -> bool:
        """A column that is gone stays. One that is new is there with the first event that has it."""
        unseen = self.log.tables[table].columns.keys() - shown
        return all(row[column] is None for row in self.log.tables[table].rows for column in unseen)

    def columns(self, table: str) -> list[tuple[str, str]]:
        return list(self.log.tables[table].columns.items())

    def rows(self, table: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
        columns = self.log.tables[table].columns
        rows = self.log.tables[table].rows
        return [tuple(expected(columns[name], row[name]) for name in names) for row in rows]

    def plain(self, value: Any) -> Any:
        return plain(value)


def new_tables(*, keyless: bool) -> dict[str, LoggedTable]:
    orders = LoggedTable(
        name="orders",
        key=("id",),
        columns={"id": "int8", "note": "text", "price": "numeric(10,2)", "more": "text"},
        rows=[{"id": str(n), "note": f"n{n}", "price": f"{n}.00", "more": f"L{n}"} for n in range(4)],
    )
    customers = LoggedTable(
        name="customers",
        key=("region", "id"),
        columns={"region": "text", "id": "int8", "note": "text", "made": "timestamptz"},
        rows=[{"region": "t1", "id": str(n), "note": f"L{n}", "made": None} for n in range(3)],
    )
    notes = LoggedTable(
        name=KEYLESS,
        key=(),
        columns={"body": "text", "amount": "int8"},
        rows=[{"body": f"t{n}", "amount": str(n)} for n in range(3)],
    )
    return {table.name: table for table in (orders, customers, *([notes] if keyless else []))}


@contextmanager
def events_shop(
    kind: SourceKind, seed: int, postgres: PostgresServer, folder: Path, spark_url: str, worker: Mapping[str, Any]
) -> Iterator[ShopOnEvents]:
    """The seed chooses how the lines are worded and ordered, and how the tables are kept."""
    chance = Random(seed)
    ordered = chance.random() < 0.6
    tables = new_tables(keyless=ordered and kind.has_keyless)
    found = kind.build(chance, folder, list(tables), ordered=ordered)
    settings = _settings(folder, tables, found, worker, soft=chance.random() < 0.3, history=bool(spark_url))
    log = EventLog(tables=tables)
    found.arriving.send([line for change in log.reads() for line in found.wording.lines(change)])
    with (
        fresh_store(postgres) as store_url,
        registered(settings, store_url, spark_url=spark_url, with_source=found.with_source) as world,
    ):
        yield ShopOnEvents(
            world=world,
            log=log,
            wording=found.wording,
            arriving=found.arriving,
            verbs=found.verbs,
            as_of=found.as_of,
        )


def _settings(
    folder: Path,
    tables: Mapping[str, LoggedTable],
    found: EventSource,
    worker: Mapping[str, Any],
    *,
    soft: bool,
    history: bool,
) -> Settings:
    document = {
        "folder": folder,
        "name": "shop",
        "lake": "lake",
        "slice_length": "1d",
        "source": found.source,
        "worker": worker,
        "tables": [
            {
                "name": f"{DATABASE}.{SCHEMA}.{table.name}",
                "id": list(table.key),
                "deletes": "soft" if soft and table.key else "hard",
                "history": history and bool(table.key),
                **({"columns": table.columns | NEW_COLUMNS} if found.declares else {}),
            }
            for table in tables.values()
        ],
    }
    return Settings.model_validate(document)
