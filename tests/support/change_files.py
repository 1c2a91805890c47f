"""Change files in a folder of their own, read as a consumer reads them, without a server."""

import io
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from cdc_pipeline.errors import CdcError, SourceGap
from cdc_pipeline.record import OPERATION, VERSION, TableName, encode_position
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.endpoints import Endpoints
from cdc_pipeline.sources.files.source import FileSource
from cdc_pipeline.sources.known import KnownTable, LastCut, PartitionProgress, StreamIdentity, StreamStart
from cdc_pipeline.sources.protocol import ChangeStream, EventBatch, UnfitEvent
from cdc_pipeline.wiring.adapters import source_of

Row = Mapping[str, Any]
COLUMNS = {"id": "bigint", "name": "text", "amount": "numeric(12,2)"}
NOWHERE = Endpoints(source_url="", metadata_store_url="", airflow_database_url="", spark_url="", airflow_url="")
ORDERS: Mapping[str, Any] = {"name": "shop.public.orders", "id": ["id"], "columns": COLUMNS}


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingKnown:
    """A stream that is not registered. `offset`: its next one, None if it was never read."""

    offset: str | None

    def identity(self) -> StreamIdentity | None:
        return None

    def next_offset(self) -> str | None:
        return self.offset

    def progress(self, among: Collection[int] | None = None) -> Mapping[int, PartitionProgress]:
        del among
        return {}

    def tables(self) -> Mapping[Any, KnownTable]:
        return {}


@dataclass(slots=True, kw_only=True)
class Read:
    """What one reader brought. `changes`: operation and row; `unfit_at`: the table of each unfit event."""

    changes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    unfit: list[UnfitEvent] = field(default_factory=list)
    unfit_at: list[TableName] = field(default_factory=list)
    places: dict[int, PartitionProgress] = field(default_factory=dict)
    error: CdcError | None = None

    def add(self, batch: EventBatch, stream: ChangeStream) -> list[str]:
        """Returns the texts of the marker messages in the batch."""
        for events in batch.events:
            self.unfit += events.unfit
            self.unfit_at += [events.table] * len(events.unfit)
            for row in events.rows.to_pylist():
                self.versions.append(row[VERSION])
                shown = {name: value for name, value in row.items() if not name.startswith("_cdc")}
                self.changes.append((row[OPERATION], shown))
        for end in batch.transactions.end_position:
            self.places[int(end)] = stream.progress_at(int(end))[0]
        return [mark.text for mark in batch.markers]


@dataclass(slots=True, kw_only=True)
class ChangeFolder:
    """`folder` is that of pipeline.yml; the files lie in `files/` below it. `source`: settings of the source."""

    folder: Path
    source: Mapping[str, Any]
    tables: Sequence[Mapping[str, Any]] = (ORDERS,)
    begun: dict[int, str] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        source = {"kind": "change_files", "list_every": "1s", **self.source, "path": "files"}
        document = {"folder": self.folder, "name": "shop", "lake": "lake", "source": source, "tables": self.tables}
        return Settings.model_validate(document)

    def opened(self) -> FileSource:
        source = source_of(self.settings, NOWHERE)
        assert isinstance(source, FileSource)
        return source

    def write(self, name: str, content: bytes | str) -> Path:
        path = self.folder / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def begin(self, _number: int, name: str) -> int:
        known = {begun: number for number, begun in self.begun.items()}
        number = known.get(name, len(self.begun) + 1)
        self.begun[number] = name
        return number

    def read(self, place: PartitionProgress | None = None, position: int = 0) -> Read:
        """Everything that is there now, from `place` on; `places` has where each stream position goes on."""
        survey = self.opened().survey(NothingKnown(offset=None if place is None else place.offset))
        start = StreamStart(
            progress={0: place or PartitionProgress(offset=survey.first_offset)},
            last_cut=LastCut(position=encode_position(position), requested=False) if place else None,
            tables={},
            begun={0: dict(self.begun)},
            begin_file=self.begin,
        )
        read, marks = Read(), list[str]()
        with closing(survey.open(start)) as stream:
            stream.send_marker("end")
            try:
                while not marks:
                    batch = stream.read(timedelta(0))
                    marks += [] if batch is None else read.add(batch, stream)
                stream.confirm(0)
            except SourceGap:
                raise
            except CdcError as error:
                read.error = error
        return read


def csv_text(rows: Sequence[Row]) -> bytes:
    """Unquoted nothing is NULL."""
    sink = io.BytesIO()
    table = pa.table({name: [None if row.get(name) is None else str(row[name]) for row in rows] for name in rows[0]})
    pa.csv.write_csv(table, sink)
    return sink.getvalue()


def parquet_bytes(rows: Sequence[Row]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), sink)
    return sink.getvalue()


def json_lines(rows: Sequence[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def avro_bytes(rows: Sequence[Row], schema: Mapping[str, Any], codec: str = "null") -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, dict(schema), [dict(row) for row in rows], codec=codec)
    return sink.getvalue()


def all_begun(places: Mapping[int, PartitionProgress], end: int) -> dict[int, str]:
    """The files that were begun until `end`, as the metadata store would have them."""
    return {number: name for at, place in places.items() if at <= end for number, name in place.begun.items()}
