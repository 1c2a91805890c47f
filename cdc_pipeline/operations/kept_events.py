"""Events as quarantine keeps them -> rows of slice files, as the table's columns are now."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.metadata_store.quarantine import Kept
from cdc_pipeline.metadata_store.rows import SourceTable
from cdc_pipeline.record import OPERATION, VERSION, Column, Operation, TableSchema
from cdc_pipeline.settings import DebeziumFilesSource, TableSettings
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.debezium.kept_lines import KeptLine
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.event_texts import events_of, payload_columns, typed_rows
from cdc_pipeline.time_slice import EPOCH

_MICROSECONDS = 1_000_000


@dataclass(slots=True, kw_only=True)
class DecodedEntries:
    """Events with the same columns. `rows` hold those in `fitting`; `refused` says why not, by id in quarantine."""

    schema: TableSchema
    rows: pa.Table
    fitting: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


def decode_texts(entries: Iterable[Kept], newest: TableSchema, known: Mapping[str, Column]) -> list[DecodedEntries]:
    """Payloads that hold the source's texts by column. `known`: every column that the table ever had."""
    in_order = sorted(entries, key=lambda entry: (_columns(entry, newest), entry.quarantine_id))
    return [
        _decode_texts(list(group), names, newest, known)
        for names, group in groupby(in_order, key=lambda entry: _columns(entry, newest))
    ]


def _columns(entry: Kept, newest: TableSchema) -> tuple[str, ...]:
    """Those that the event has, and its id."""
    return tuple(dict.fromkeys((*payload_columns(entry.payload), *newest.key)))


def _decode_texts(
    entries: Sequence[Kept], names: tuple[str, ...], newest: TableSchema, known: Mapping[str, Column]
) -> DecodedEntries:
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        why = f"the type of {unknown} is not known before the table's next event that fits"
        refused = {entry.quarantine_id: why for entry in entries}
        return DecodedEntries(schema=newest, rows=event_schema(newest).empty_table(), refused=refused)
    schema = TableSchema(columns=tuple(known[name] for name in names), key=newest.key)
    versions = [_version(entry, schema) for entry in entries]
    events = events_of([entry.payload for entry in entries], versions, schema)
    rows, misfits = typed_rows(events, schema)
    refused = {entries[misfit.row].quarantine_id: misfit.reason for misfit in misfits}
    fits = [entry.quarantine_id not in refused for entry in entries]
    return DecodedEntries(
        schema=schema,
        rows=rows.filter(pa.array(fits, pa.bool_())),
        fitting=[entry.quarantine_id for entry in entries if entry.quarantine_id not in refused],
        refused=refused,
    )


def _version(entry: Kept, schema: TableSchema) -> str:
    """Equal rows of a bag's snapshot share the cutoff's version: each gets its own, older than any event behind it."""
    if schema.is_bag and entry.snapshot_id is not None:
        return f"{entry.version}.{entry.quarantine_id:016x}"
    return entry.version


@dataclass(frozen=True, slots=True, kw_only=True)
class LineDecoder:
    """Payloads that are whole lines, read as `settings` and `source` say now."""

    table: SourceTable
    settings: TableSettings
    source: DebeziumFilesSource
    tables: DebeziumTables
    stream_partitions: Sequence[int]

    def decode(self, entries: Iterable[Kept]) -> list[DecodedEntries]:
        """A version that was known when an event was kept aside stays the event's."""
        parts: dict[TableSchema, DecodedEntries] = {}
        for entry in entries:
            schema, rows, why = self._rows(entry)
            rows = _with_version(rows, entry.version)
            if not why and rows.num_rows and pc.min(rows[VERSION]).as_py() < self.table.horizon:
                why = f"it is too late: older than {self.table.horizon}, below which tombstones may be gone"
            part = parts.setdefault(schema, DecodedEntries(schema=schema, rows=rows.slice(0, 0)))
            if why:
                part.refused[entry.quarantine_id] = why
            else:
                part.rows = pa.concat_tables([part.rows, rows])
                part.fitting.append(entry.quarantine_id)
        return list(parts.values())

    def _rows(self, entry: Kept) -> tuple[TableSchema, pa.Table, str]:
        """And why they cannot be applied."""
        line = KeptLine(
            entry.payload,
            number=entry.stream_partition,
            written=int((entry.created_at - EPOCH).total_seconds() * _MICROSECONDS),
        )
        found = line.events(self.tables, sequence_by=self.source.sequence_by, stream_partitions=self.stream_partitions)
        nothing = TableSchema(columns=(), key=())
        if not found:
            return nothing, event_schema(nothing).empty_table(), "it is no event of a listed table"
        (events,) = found
        why = next((unfit.reason for unfit in events.unfit), "")
        if not why and events.table != self.table.name:
            why = f"it is an event of {events.table}"
        operations = events.rows[OPERATION].to_pylist()
        if not why and self.settings.truncate == "ignore" and Operation.TRUNCATE in operations:
            why = "pipeline.yml ignores truncates of the table: drop it"
        return events.schema, events.rows, why


def _with_version(rows: pa.Table, version: str) -> pa.Table:
    if not version:
        return rows
    column = rows.schema.get_field_index(VERSION)
    return rows.set_column(column, rows.schema.field(VERSION), pa.array([version] * rows.num_rows, pa.string()))
