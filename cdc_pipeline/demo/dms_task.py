"""A replication task as AWS DMS runs it, for the demo: a full load of the shop in MariaDB, then its changes.

    python -m cdc_pipeline.demo.dms_task PIPELINE_YML

It writes what the source of this pipeline.yml reads. The changes are read as a consumer of MariaDB reads them.
"""

import json
import signal
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_pipeline.demo.dms_targets import OPERATION, TIME, TRANSACTION, DmsFolder, DmsStream, DmsTarget
from cdc_pipeline.demo.shop_behind import reader_url
from cdc_pipeline.errors import SourceError
from cdc_pipeline.record import COMMIT_TIME, Operation, TableName, decode_position
from cdc_pipeline.record import OPERATION as OWN_OPERATION
from cdc_pipeline.record import TRANSACTION as OWN_TRANSACTION
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.aws import KinesisSource
from cdc_pipeline.settings.file import load_settings
from cdc_pipeline.settings.installation.endpoints import Endpoints
from cdc_pipeline.settings.installation.state import write_private_text
from cdc_pipeline.sources.kinesis.calls import connected
from cdc_pipeline.sources.known import FoundTable, KnownTable, PartitionProgress, StreamIdentity, StreamStart
from cdc_pipeline.sources.protocol import EventBatch, Source, TableEvents
from cdc_pipeline.wiring import source_of

NOTED = "dms.json"
"""The file beside pipeline.yml that says up to where the task has written. It is there once the full load is."""
_FULL_LOAD = "full-load"
_READ_WAIT = timedelta(seconds=1)
_WRITE_SECONDS = 2.0
_OPERATIONS = {Operation.INSERT: "I", Operation.MOVE: "I", Operation.UPDATE: "U", Operation.DELETE: "D"}
"""A key change is a delete of the old id before the insert of the new one. The shop truncates nothing."""


@dataclass(frozen=True, slots=True)
class _Noted:
    """Implements `KnownStream`: what a task knows from its earlier runs. `place` is None before the full load."""

    place: PartitionProgress | None
    known: tuple[KnownTable, ...]

    def identity(self) -> StreamIdentity | None:
        return None

    def next_offset(self) -> str | None:
        return None if self.place is None else self.place.offset

    def progress(self, among: Collection[int] | None = None) -> Mapping[int, PartitionProgress]:
        del among
        return {} if self.place is None else {0: self.place}

    def tables(self) -> Mapping[TableName, KnownTable]:
        return {table.name: table for table in self.known}


@dataclass(frozen=True, slots=True, kw_only=True)
class DmsTask:
    """Copies the tables of `source` to `target`, then their changes. `noted`: the file with its place."""

    source: Source
    target: DmsTarget
    noted: Path

    def run(self, stopping: Event) -> None:
        """Goes on where an earlier run ended, until `stopping` is set. Raises SourceAway when the server is gone."""
        noted = self._noted()
        survey = self.source.survey(noted)
        if noted.place is None:
            noted = self._load(survey.set_up().tables)
            survey = self.source.survey(noted)
        start = StreamStart(
            progress=noted.progress(),
            last_cut=None,
            tables=noted.tables(),
            begun={},
            begin_file=lambda _partition, _name: 0,
        )
        with closing(survey.open(start)) as stream:
            waiting, end, due = list[TableEvents](), stream.position, time.monotonic()
            while not stopping.is_set():
                batch = stream.read(_READ_WAIT)
                if batch is not None:
                    waiting += batch.events
                    end = _last_end(batch, end)
                if waiting and time.monotonic() >= due and _are_whole(waiting, end):
                    self._write(waiting, stream.position, end)
                    self._note(replace(noted, place=stream.progress_at(end)[0]))
                    waiting, due = [], time.monotonic() + _WRITE_SECONDS

    def _load(self, tables: Sequence[FoundTable]) -> _Noted:
        with (
            self.source.hold_position("load", name=_FULL_LOAD) as held,
            self.source.copy_at(held.exported) as copy,
        ):
            for found in tables:
                if found.schema is not None:
                    blocks = (block.rows for block in copy.rows(found.name, found.schema))
                    self.target.load(found.name, found.schema, blocks)
        noted = _Noted(PartitionProgress(offset=held.offset), tuple(map(_known, tables)))
        self._note(noted)
        return noted

    def _write(self, waiting: Iterable[TableEvents], start: int, end: int) -> None:
        """Writes what committed from `start` on: a stream may return earlier transactions again."""
        by_table: dict[TableName, list[TableEvents]] = {}
        for events in waiting:
            by_table.setdefault(events.table, []).append(events)
        for table, parts in by_table.items():
            changes = pa.concat_tables([_changes(events, start) for events in parts])
            if changes.num_rows:
                self.target.write(table, parts[-1].schema, changes, end)

    def _noted(self) -> _Noted:
        """Also completes what a killed run noted and did not publish."""
        if not self.noted.exists():
            return _Noted(None, ())
        document = json.loads(self.noted.read_text(encoding="utf-8"))
        place = PartitionProgress(**document["place"])
        self.target.publish(decode_position(place.offset))
        return _Noted(place, tuple(_known_of(table) for table in document["tables"]))

    def _note(self, noted: _Noted) -> None:
        if noted.place is not None:
            tables = [{**asdict(table), "name": str(table.name)} for table in noted.known]
            write_private_text(self.noted, json.dumps({"place": asdict(noted.place), "tables": tables}))
            self.target.publish(decode_position(noted.place.offset))


def _known(found: FoundTable) -> KnownTable:
    return KnownTable(
        name=found.name,
        source_id=found.source_id,
        key=found.key,
        published_as=found.published_as,
        description=found.description,
    )


def _known_of(document: dict[str, Any]) -> KnownTable:
    name, key, description = TableName.parse(document["name"]), tuple(document["key"]), tuple(document["description"])
    return KnownTable(**{**document, "name": name, "key": key, "description": description})


def _last_end(batch: EventBatch, before: int) -> int:
    ends = batch.transactions.end_position
    return int(ends[-1]) if len(ends) else before


def _are_whole(waiting: Iterable[TableEvents], end: int) -> bool:
    """Whether every event is of a transaction that ended before `end`."""
    return all(events.commit_position[-1] < end for events in waiting)


def _changes(events: TableEvents, start: int) -> pa.Table:
    """Returns the events as DMS writes them: operation, time and transaction, then the table's columns."""
    if events.unfit:
        raise SourceError(events.unfit[0].reason, remedy="write only values to the shop that the lake can hold")
    rows = events.rows.filter(pa.array(np.asarray(events.commit_position) >= start))
    operations = [_OPERATIONS[Operation(name)] for name in rows[OWN_OPERATION].to_pylist()]
    own = {
        OPERATION: pa.array(operations, pa.string()),
        TIME: rows[COMMIT_TIME],
        TRANSACTION: rows[OWN_TRANSACTION],
    }
    return pa.table({**own, **{name: rows[name] for name in events.schema.names}})


def task_of(settings: Settings, shop_url: str) -> DmsTask:
    """Returns the task that writes what the source of `settings` reads. Connects to nothing.

    `shop_url`: the MariaDB server with the tables of `settings`, as `source.url` has it.
    """
    folder, source = settings.folder, settings.source
    target: DmsTarget
    if isinstance(source, KinesisSource):
        target = DmsStream(connected("kinesis", source, folder), source.stream)
    else:
        target = DmsFolder(source.folders(folder)[0])
    return DmsTask(source=_shop(settings, shop_url), target=target, noted=folder / NOTED)


def _shop(settings: Settings, url: str) -> Source:
    document = {
        "folder": settings.folder,
        "name": f"{settings.name}_dms",
        "lake": "lake",
        "source": {"kind": "mysql", "url": url},
        "tables": [{"name": table.name} for table in settings.tables],
    }
    nowhere = Endpoints(source_url="", metadata_store_url="", airflow_database_url="", spark_url="", airflow_url="")
    return source_of(Settings.model_validate(document), nowhere)


def main() -> None:
    stopping = Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
    settings = load_settings(Path(sys.argv[1]))
    task_of(settings, reader_url(settings.folder)).run(stopping)


if __name__ == "__main__":
    main()
