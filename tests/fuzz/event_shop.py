"""A shop whose changes come as Debezium's events in files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.work import WorkerSettings
from tests.crash.world import World
from tests.fuzz.event_changes import NEW_COLUMNS, EventChanges
from tests.fuzz.event_log import DATABASE, SCHEMA, EventLog, LoggedTable, LogLine, Statement, Wording
from tests.fuzz.postgres_values import plain
from tests.support.postgres import fresh_store
from tests.support.source_values import expected

ON_THE_WAY = frozenset({"hold", "flow", "again", "roll", "odd"})


@dataclass(slots=True, kw_only=True)
class EventsOnDisk:
    """Files with the lines that have arrived, one folder per stream partition.

    `ordered`: whether lines of a partition keep their order, and come once or from a transaction on again. Otherwise
    they come in any order, and any number of times.
    """

    folder: Path
    ordered: bool
    held: dict[int, list[LogLine]] = field(default_factory=dict)
    arrived: dict[int, list[LogLine]] = field(default_factory=dict)
    files: dict[int, int] = field(default_factory=dict)

    def send(self, lines: list[LogLine]) -> None:
        for line in lines:
            if line.partition in self.held:
                self.held[line.partition].append(line)
            else:
                self._write(line)

    def hold(self, partition: int) -> None:
        self.held.setdefault(partition, [])

    def flow(self, partition: int) -> None:
        lines = self.held.pop(partition, [])
        if not self.ordered:
            Random(len(lines)).shuffle(lines)
        for line in lines:
            self._write(line)

    def roll(self, partition: int) -> None:
        self.files[partition] = self.files.get(partition, 0) + 1

    def odd(self, partition: int, text: str) -> None:
        self._append(partition, text)

    def again(self, most: int) -> None:
        """The log from one of its last transactions on, as a connector sends it that was killed."""
        known = sorted({line.transaction for lines in self.arrived.values() for line in lines})[1:]
        first = known[-min(most, len(known))] if known else 0
        repeated = [line for lines in self.arrived.values() for line in lines if line.transaction >= first > 0]
        if self.ordered and not all(line.repeats for line in repeated):
            return
        if not self.ordered:
            Random(most).shuffle(repeated)
        for line in repeated:
            if line.partition not in self.held or not self.ordered:
                self._append(line.partition, line.text)

    def _write(self, line: LogLine) -> None:
        self.arrived.setdefault(line.partition, []).append(line)
        self._append(line.partition, line.text)

    def _append(self, partition: int, text: str) -> None:
        path = self.folder / str(partition) / f"{self.files.get(partition, 0):06}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopOnEvents:
    """Implements `Shop`."""

    world: World
    log: EventLog
    disk: EventsOnDisk
    saved: list[str] = field(default_factory=list)

    @property
    def is_copied(self) -> bool:
        return False

    def changes(self, chance: Random) -> EventChanges:
        return EventChanges(chance=chance, log=self.log)

    def execute(self, line: str) -> None:
        statements: list[Statement] = json.loads(line)
        verb, *rest = statements[0]
        if verb in ON_THE_WAY:
            getattr(self.disk, verb)(*rest)
        else:
            self.disk.send(self.log.run(statements))

    def bury_the_dead(self) -> None:
        self.world.expire_leases()

    def arrive(self) -> None:
        for partition in list(self.disk.held):
            self.disk.flow(partition)

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
        name="notes",
        key=(),
        columns={"body": "text", "amount": "int8"},
        rows=[{"body": f"t{n}", "amount": str(n)} for n in range(3)],
    )
    return {table.name: table for table in (orders, customers, *([notes] if keyless else []))}


@contextmanager
def events_shop(
    seed: int, postgres: PostgresServer, folder: Path, spark_url: str, worker: Mapping[str, Any]
) -> Iterator[ShopOnEvents]:
    """The seed chooses how the lines are worded and ordered, and how the tables are kept."""
    chance = Random(seed)
    ordered = chance.random() < 0.6
    records = chance.random() < 0.7
    wording = Wording(
        schemas=chance.random() < 0.5,
        records=records,
        whole=chance.random() < 0.3,
        blocks=chance.random() < 0.3,
        partitions=chance.choice((1, 2, 3)) if records else 1,
    )
    tables = new_tables(keyless=ordered)
    settings = _settings(folder, tables, wording, ordered=ordered, soft=chance.random() < 0.3, history=bool(spark_url))
    settings = settings.model_copy(update={"worker": WorkerSettings.model_validate(worker)})
    disk = EventsOnDisk(folder=folder / "events", ordered=ordered)
    for partition in range(wording.partitions):
        (disk.folder / str(partition)).mkdir(parents=True)
    log = EventLog(wording=wording, tables=tables)
    disk.send(log.reads())
    with fresh_store(postgres) as store_url:
        world = World(settings=settings, source_url="", store_url=store_url, spark_url=spark_url)
        if spark_url:
            world.make_lake = None
        with closing(world):
            with world.process() as pipeline:
                pipeline.source_setup().set_up()
            yield ShopOnEvents(world=world, log=log, disk=disk)


def _settings(
    folder: Path, tables: dict[str, LoggedTable], wording: Wording, *, ordered: bool, soft: bool, history: bool
) -> Settings:
    source = {"kind": "debezium_files", "path": "events/", "ordered": ordered}
    document = {
        "folder": folder,
        "name": "shop",
        "lake": "lake",
        "slice_length": "1d",
        "source": source if ordered else {**source, "sequence_by": ["source.lsn"]},
        "tables": [
            {
                "name": f"{DATABASE}.{SCHEMA}.{table.name}",
                "id": list(table.key),
                "deletes": "soft" if soft and table.key else "hard",
                "history": history and bool(table.key),
                **({} if wording.schemas else {"columns": table.columns | NEW_COLUMNS}),
            }
            for table in tables.values()
        ],
    }
    return Settings.model_validate(document)
