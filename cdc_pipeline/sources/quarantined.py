"""Decodes quarantined events, from the source's texts, into rows of slice files with the table's present types."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import Protocol

import pyarrow as pa

from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.event_texts import events_of, numbers_in, payload_columns, typed_rows, why_unreadable


class QuarantinedText(Protocol):
    """A quarantined event. `payload`: its values as the source's texts. `snapshot_id` is set for a snapshot's row."""

    @property
    def quarantine_id(self) -> int: ...
    @property
    def stream_partition(self) -> int: ...
    @property
    def version(self) -> str: ...
    @property
    def payload(self) -> Mapping[str, str | None]: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def snapshot_id(self) -> str | None: ...


@dataclass(slots=True, kw_only=True)
class DecodedEvents:
    """Decoded events that have the same columns.

    `fitting`: quarantine ids of the events that `rows` holds. `refused`: why each other event waits on, by quarantine
    id. `rows` may hold what part of a refused event can already be applied, as often as it is replayed: a delete.
    """

    schema: TableSchema
    rows: pa.Table
    fitting: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


def decode_texts(
    entries: Iterable[QuarantinedText], newest: TableSchema, known: Sequence[Column]
) -> list[DecodedEvents]:
    """Decodes payloads that hold the source's texts by column. `known`: every column of the table, the last type last.

    A value belongs to the column with the number that its column had, whatever the name of either is by now. Returns
    one entry per set of columns, and one for events that cannot be read, as after a correction by hand.
    """
    given = list(entries)
    whys = {entry.quarantine_id: why_unreadable(entry.payload) for entry in given}
    unreadable = {quarantine_id: why for quarantine_id, why in whys.items() if why}
    last: dict[str | int, Column] = {column.name: column for column in known}
    last |= {column.number: column for column in known if column.number is not None}
    readable = [entry for entry in given if entry.quarantine_id not in unreadable]
    in_order = sorted(readable, key=lambda entry: (_columns(entry, newest), entry.quarantine_id))
    decoded = [
        _decode_texts(list(group), {name: last.get(number or name) for name, number in columns}, newest)
        for columns, group in groupby(in_order, key=lambda entry: _columns(entry, newest))
    ]
    return [*decoded, _refused(unreadable, newest)] if unreadable else decoded


def _columns(entry: QuarantinedText, newest: TableSchema) -> tuple[tuple[str, int], ...]:
    """Returns names and numbers (0: none) of the event's columns, followed by missing columns of the id."""
    numbers = numbers_in(entry.payload)
    names = dict.fromkeys((*payload_columns(entry.payload), *newest.key))
    return tuple((name, numbers.get(name, 0)) for name in names)


def _decode_texts(
    entries: Sequence[QuarantinedText], columns: Mapping[str, Column | None], newest: TableSchema
) -> DecodedEvents:
    unknown = next((name for name, column in columns.items() if column is None), None)
    if unknown is not None:
        why = f"the type of {unknown} is not known before the table's next event that fits"
        return _refused({entry.quarantine_id: why for entry in entries}, newest)
    found = tuple(replace(column, name=name) for name, column in columns.items() if column is not None)
    schema = TableSchema(columns=found, key=newest.key)
    versions = [_version(entry, schema) for entry in entries]
    events = events_of([entry.payload for entry in entries], versions, schema)
    rows, misfits = typed_rows(events, schema)
    refused = {entries[misfit.row].quarantine_id: misfit.reason for misfit in misfits}
    fits = [entry.quarantine_id not in refused for entry in entries]
    return DecodedEvents(
        schema=schema,
        rows=rows.filter(pa.array(fits, pa.bool_())),
        fitting=[entry.quarantine_id for entry in entries if entry.quarantine_id not in refused],
        refused=refused,
    )


def _refused(why: dict[int, str], newest: TableSchema) -> DecodedEvents:
    return DecodedEvents(schema=newest, rows=event_schema(newest).empty_table(), refused=why)


def _version(entry: QuarantinedText, schema: TableSchema) -> str:
    """Returns the event's version, made unique for a snapshot row of a keyless table.

    All snapshot rows have the cutoff's version. A keyless table needs one version per row, since rows may be equal; the
    suffix keeps it below the version of any event after the cutoff.
    """
    if schema.is_keyless and entry.snapshot_id is not None:
        return f"{entry.version}.{entry.quarantine_id:016x}"
    return entry.version
