"""Cut files: one JSON object per cut or late slice, which decides what follows in the chain."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from cdc_pipeline.errors import RegistryError, StreamMoved
from cdc_pipeline.metadata_store.ledger.cut import Cut, LateSlice
from cdc_pipeline.metadata_store.ledger.records import SourceTable, Stream
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.record import TableName, TableSchema

FORMAT = 2
_NOT_IN_CUT = ("stream", "tables", "places")
"""Fields of a cut that its file contains in other keys, or that follow from the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIdentity:
    """A source table as it was when the cut was made, without its number in one metadata store.

    `stale`: why the table is stale; None if it is not. `cutoff_offset`: of its last published snapshot. `horizon`: its
    tombstone horizon, "" if it has none.
    """

    table_uuid: UUID
    name: TableName
    source_oid: int
    published_as: str | None = None
    stale: str | None = None
    cutoff_offset: str | None = None
    horizon: str = ""

    @classmethod
    def of(cls, row: SourceTable) -> "TableIdentity":
        """Returns the identity of a table of the metadata store, as it is now."""
        return cls(
            table_uuid=row.table_uuid,
            name=row.name,
            source_oid=row.source_oid,
            published_as=row.published_as,
            stale=row.state_reason or "" if row.state is TableState.STALE else None,
            cutoff_offset=row.cutoff_offset,
            horizon=row.horizon,
        )

    @property
    def is_unread(self) -> bool:
        """Whether the table is stale and its changes are not read."""
        return self.stale is not None and self.published_as is None

    def is_older_than(self, row: SourceTable) -> bool:
        """Returns whether the metadata store's row has changed since the cut was made.

        The table's snapshot was published since, or the table became stale since: only a new snapshot ends that.
        """
        if self.cutoff_offset != row.cutoff_offset:
            return (self.cutoff_offset or "") < (row.cutoff_offset or "")
        return row.state is TableState.STALE


@dataclass(frozen=True, slots=True, kw_only=True)
class CutFile:
    """A cut or a late slice as it is stored in the bucket. `content` names a table by its index in `tables`.

    `schemas`: of the slices, by id. `tables`: for a cut, all tables that were read up to it.
    """

    stream: Stream
    tables: tuple[TableIdentity, ...]
    schemas: Mapping[str, TableSchema]
    content: Cut | LateSlice

    def to_bytes(self) -> bytes:
        """Returns JSON in a durable format: every later version of this code has to read it."""
        content = msgspec.to_builtins(self.content, builtin_types=(datetime,))
        if isinstance(self.content, Cut):
            content = {name: value for name, value in content.items() if name not in _NOT_IN_CUT}
            content["label"] = list(content["label"].values())
        document = {
            "format": FORMAT,
            "stream": msgspec.to_builtins(self.stream),
            "tables": list(map(table_array, self.tables)),
            "schemas": {schema_id: schema.to_json() for schema_id, schema in self.schemas.items()},
            "cut" if isinstance(self.content, Cut) else "late": content,
        }
        return json_bytes(document)

    @classmethod
    def from_bytes(cls, content: bytes) -> "CutFile":
        """Raises RegistryError for a damaged file, and for a format that this code does not know."""
        with damage_named("a cut file"):
            document = json.loads(content)
            if document.get("format") != FORMAT:
                raise RegistryError(
                    f"a cut file has the format {document.get('format')}",
                    expected=f"format {FORMAT}",
                    remedy="install the version of cdc-pipeline that wrote it, or a newer one",
                )
            tables = tuple(map(identity_of, document["tables"]))
            return cls(
                stream=msgspec.convert(document["stream"], Stream),
                tables=tables,
                schemas={name: TableSchema.from_json(schema) for name, schema in document["schemas"].items()},
                content=msgspec.convert(document["late"], LateSlice)
                if "late" in document
                else _cut_of(document["cut"], document["stream"]["name"], tables=range(len(tables))),
            )

    def of_tables(self, uuids: Collection[UUID]) -> "CutFile | None":
        """Returns the cut file with only these tables; None for a late slice of another one.

        Tables that were removed since the cut are left out: a later table of the same name is another table.
        """
        kept = [index for index, table in enumerate(self.tables) if table.table_uuid in uuids]
        if len(kept) == len(self.tables):
            return self
        if isinstance(self.content, LateSlice):
            return None
        events = [(place, event) for place, event in self.content.numbered_events() if event.table_id in kept]
        content = replace(
            self.content,
            tables=tuple(kept),
            slices=tuple(new for new in self.content.slices if new.table_id in kept),
            quarantined=tuple(event for _, event in events),
            places=tuple(place for place, _ in events),
        )
        numbers = {index: number for number, index in enumerate(kept)}
        return replace(self, tables=tuple(self.tables[index] for index in kept), content=_renumbered(content, numbers))

    def outline(self, known: dict[TableIdentity, TableIdentity]) -> "CutFile":
        """Returns the file without events, positions and slices; slices below the tombstone horizon stay.

        `known`: equal tables of all files are one object.
        """
        tables, content = tuple(known.setdefault(table, table) for table in self.tables), self.content
        if isinstance(content, Cut):
            partitions = tuple(replace(part, last_position={}, begun={}) for part in content.partitions)
            too_late = tuple(new for new in content.slices if new.is_below(tables[new.table_id].horizon))
            content = replace(content, tables=(), slices=too_late, quarantined=(), partitions=partitions)
        return replace(self, tables=tables, schemas={}, content=content)

    def content_for(self, table_ids: Sequence[int]) -> Cut | LateSlice:
        """Returns the content with the numbers that a metadata store gave to `tables`, in the same order."""
        return _renumbered(self.content, dict(enumerate(table_ids)))


def cut_file(
    stream: Stream,
    tables: Mapping[int, TableIdentity],
    schemas: Mapping[str, TableSchema],
    content: Cut | LateSlice,
) -> CutFile:
    """Builds the cut file. `content` has the metadata store's table numbers, which are the keys of `tables`.

    Raises StreamMoved for a table that the store lacks.
    """
    slices = (content.slice,) if isinstance(content, LateSlice) else content.slices
    numbers = [content.slice.table_id] if isinstance(content, LateSlice) else sorted(content.tables)
    removed = set(numbers) - tables.keys()
    if removed:
        raise StreamMoved(
            f"tables of the stream {stream.name} are not registered any more: {len(removed)} of {len(numbers)}",
            expected="the tables with which the stream was opened",
            remedy="open the stream again: nothing was decided",
        )
    used = {new.schema_id for new in slices}
    return CutFile(
        stream=stream,
        tables=tuple(tables[number] for number in numbers),
        schemas={schema_id: schemas[schema_id] for schema_id in sorted(used)},
        content=_renumbered(content, {number: index for index, number in enumerate(numbers)}),
    )


def check_not_too_late(cut: Cut, tables: Mapping[int, TableIdentity]) -> None:
    """Raises StreamMoved for a slice with an event below the tombstone horizon of its table. `tables`: as they are now.

    The horizon has risen since the stream was opened. Whoever opens the stream again quarantines such events.
    """
    for new in cut.slices:
        if new.table_id in tables and new.is_below(horizon := tables[new.table_id].horizon):
            raise StreamMoved(
                f"a slice of table {new.table_id} goes back to the version {new.oldest_version}",
                expected=f"none below {horizon}: tombstones under it may be gone",
                remedy="open the stream again: events that are too late go to quarantine, where they may be dropped",
            )


def _renumbered(content: Cut | LateSlice, numbers: Mapping[int, int]) -> Cut | LateSlice:
    if isinstance(content, LateSlice):
        return replace(content, slice=replace(content.slice, table_id=numbers[content.slice.table_id]))
    return replace(
        content,
        tables=tuple(numbers[table] for table in content.tables),
        slices=tuple(replace(new, table_id=numbers[new.table_id]) for new in content.slices),
        quarantined=tuple(replace(event, table_id=numbers[event.table_id]) for event in content.quarantined),
    )


def json_bytes(document: Mapping[str, Any]) -> bytes:
    """Returns compact JSON in ASCII.

    msgspec converts the values, and `json` writes and reads the text. The JSON of msgspec refuses lone surrogates,
    which quarantined payloads contain for bytes that are not valid UTF-8.
    """
    return json.dumps(document, separators=(",", ":"), default=datetime.isoformat).encode()


@contextmanager
def damage_named(what: str) -> Iterator[None]:
    """Turns the errors of JSON, values and schemas into RegistryError."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RegistryError(
            f"{what} cannot be read: {type(error).__name__}: {error}",
            expected="the bytes that were written",
            remedy="bring the object back from a copy of the bucket: nothing was changed",
        ) from error


def table_array(table: TableIdentity) -> list[Any]:
    """Returns the fields without their names, to save space: every cut file has them for each table.

    The horizon is the last one, and is left out if there is none, as older versions did always.
    """
    values = msgspec.to_builtins(table)
    found = list((values | {"name": list(values["name"].values())}).values())
    return found if table.horizon else found[:-1]


def identity_of(values: list[Any]) -> TableIdentity:
    named = dict(zip((field.name for field in fields(TableIdentity)), values, strict=False))
    database, schema, table = named["name"]
    return msgspec.convert(
        named | {"name": {"database": database, "schema": schema, "table": table}}, type=TableIdentity
    )


def _cut_of(document: dict[str, Any], stream: str, *, tables: Sequence[int]) -> Cut:
    """Reads a cut from JSON. `tables`: the tables that were read."""
    outside = {"stream": stream, "tables": list(tables)}
    return msgspec.convert(document | outside | {"label": label_values(document["label"])}, Cut, str_keys=True)


def label_values(label: list[str]) -> dict[str, str]:
    start, end = label
    return {"start": start, "end": end}
