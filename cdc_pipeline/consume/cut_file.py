"""Cut files: the one object per cut, or per late slice, that decides what follows at a place of a stream; as JSON."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from cdc_pipeline.errors import RegistryError
from cdc_pipeline.metadata_store.cut import Cut, LateSlice, NewSlice, PartitionRange, QuarantinedEvent
from cdc_pipeline.metadata_store.rows import Stream
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.time_slice import Label

FORMAT = 2
_WITH_EMPTY_SLICES = 1
"""The format of older cut files: they name a slice of every table and stream partition, also where nothing came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIdentity:
    """A source table whatever number it has in a metadata store, as it stood when the cut was made.

    `stale`: why only a new snapshot can mend it; None if it is not. `cutoff_offset` of its last published snapshot.
    """

    table_uuid: UUID
    name: TableName
    source_oid: int
    publication_mark: str | None = None
    stale: str | None = None
    cutoff_offset: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CutFile:
    """`content` names a table by its index in `tables`. `schemas` are those of its slices, by id.

    `tables` of a cut: all that were read through it.
    """

    stream: Stream
    tables: tuple[TableIdentity, ...]
    schemas: Mapping[str, TableSchema]
    content: Cut | LateSlice

    def to_bytes(self) -> bytes:
        """Durable format: what is written once has to be read for ever."""
        document = {
            "format": FORMAT,
            "stream": asdict(self.stream),
            "tables": [identity_json(table) for table in self.tables],
            "schemas": {schema_id: schema.to_json() for schema_id, schema in self.schemas.items()},
            **(_cut(self.content) if isinstance(self.content, Cut) else _late(self.content)),
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "CutFile":
        """Raises RegistryError for a format that this code does not know."""
        document = json.loads(content)
        if document.get("format") not in (_WITH_EMPTY_SLICES, FORMAT):
            raise RegistryError(
                f"a cut file has the format {document.get('format')}",
                expected=f"format {FORMAT} or older",
                remedy="install the version of cdc-pipeline that wrote it, or a newer one",
            )
        stream, tables = Stream(**document["stream"]), tuple(map(identity_of, document["tables"]))
        return cls(
            stream=stream,
            tables=tables,
            schemas={name: TableSchema.from_json(schema) for name, schema in document["schemas"].items()},
            content=_late_of(document["late"])
            if "late" in document
            else _cut_of(document["cut"], stream.name, tables=range(len(tables))),
        )

    def of_tables(self, uuids: Collection[UUID]) -> "CutFile":
        """Without those that were removed since: what came later under their names is another table."""
        kept = [index for index, table in enumerate(self.tables) if table.table_uuid in uuids]
        if len(kept) == len(self.tables) or isinstance(self.content, LateSlice):
            return self
        content = replace(
            self.content,
            tables=tuple(kept),
            slices=tuple(new for new in self.content.slices if new.table_id in kept),
            quarantined=tuple(event for event in self.content.quarantined if event.table_id in kept),
        )
        numbers = {index: number for number, index in enumerate(kept)}
        return replace(self, tables=tuple(self.tables[index] for index in kept), content=_renumbered(content, numbers))

    def content_for(self, table_ids: Sequence[int]) -> Cut | LateSlice:
        """The content for a metadata store that gave these numbers to `tables`."""
        return _renumbered(self.content, dict(enumerate(table_ids)))


def cut_file(
    stream: Stream,
    tables: Mapping[int, TableIdentity],
    schemas: Mapping[str, TableSchema],
    content: Cut | LateSlice,
) -> CutFile:
    """Of a content with the metadata store's own table numbers, which are the keys of `tables`."""
    slices = (content.slice,) if isinstance(content, LateSlice) else content.slices
    numbers = [content.slice.table_id] if isinstance(content, LateSlice) else sorted(content.tables)
    used = {new.schema_id for new in slices if new.schema_id is not None}
    return CutFile(
        stream=stream,
        tables=tuple(tables[number] for number in numbers),
        schemas={schema_id: schemas[schema_id] for schema_id in sorted(used)},
        content=_renumbered(content, {number: index for index, number in enumerate(numbers)}),
    )


def _renumbered(content: Cut | LateSlice, numbers: Mapping[int, int]) -> Cut | LateSlice:
    if isinstance(content, LateSlice):
        return replace(content, slice=replace(content.slice, table_id=numbers[content.slice.table_id]))
    return replace(
        content,
        owner="",
        epoch=None,
        tables=tuple(numbers[table] for table in content.tables),
        slices=tuple(replace(new, table_id=numbers[new.table_id]) for new in content.slices),
        quarantined=tuple(replace(event, table_id=numbers[event.table_id]) for event in content.quarantined),
    )


def identity_json(table: TableIdentity) -> list[Any]:
    """Short: every cut file has one of each table."""
    name = [table.name.database, table.name.schema, table.name.table]
    state = [table.publication_mark, table.stale, table.cutoff_offset]
    return [str(table.table_uuid), name, table.source_oid, *state]


def identity_of(document: list[Any]) -> TableIdentity:
    uuid, (database, schema, table), source_oid, publication_mark, stale, cutoff_offset = document
    return TableIdentity(
        table_uuid=UUID(uuid),
        name=TableName(database=database, schema=schema, table=table),
        source_oid=source_oid,
        publication_mark=publication_mark,
        stale=stale,
        cutoff_offset=cutoff_offset,
    )


def _late(late: LateSlice) -> dict[str, Any]:
    return {"late": {"slice": asdict(late.slice), "slice_id": late.slice_id, "events": late.events}}


def _late_of(document: dict[str, Any]) -> LateSlice:
    return LateSlice(
        slice=_slice_of(document["slice"]),
        slice_id=document["slice_id"],
        events=tuple((snapshot, place) for snapshot, place in document["events"]),
    )


def _cut(cut: Cut) -> dict[str, Any]:
    """The tables that were read are those that the file names."""
    return {
        "cut": {
            "start": cut.start,
            "position": cut.position,
            "commit_time": cut.commit_time.isoformat(),
            "label": [cut.label.start.isoformat(), cut.label.end.isoformat()],
            "requested": cut.requested,
            "partitions": [asdict(part) for part in cut.partitions],
            "slices": [asdict(new) for new in cut.slices],
            "quarantined": [asdict(event) for event in cut.quarantined],
        }
    }


def _cut_of(document: dict[str, Any], stream: str, *, tables: Sequence[int]) -> Cut:
    slices = [
        *map(_slice_of, document["slices"]),
        *(NewSlice(table_id=table, stream_partition=number) for table, number in document.get("empty", ())),
    ]
    start, end = map(datetime.fromisoformat, document["label"])
    return Cut(
        stream=stream,
        owner="",
        epoch=None,
        start=document.get("start"),
        position=document["position"],
        commit_time=datetime.fromisoformat(document["commit_time"]),
        label=Label(start=start, end=end),
        requested=document["requested"],
        partitions=tuple(map(_range_of, document["partitions"])),
        tables=tuple(tables),
        slices=tuple(sorted(slices, key=lambda new: (new.table_id, new.stream_partition))),
        quarantined=tuple(QuarantinedEvent(**event) for event in document["quarantined"]),
    )


def _range_of(document: dict[str, Any]) -> PartitionRange:
    begun = {int(number): name for number, name in document["begun"].items()}
    return PartitionRange(**{**document, "begun": begun})


def _slice_of(document: dict[str, Any]) -> NewSlice:
    ranges = tuple((low, high) for low, high in document["key_ranges"])
    return NewSlice(**{**document, "key_ranges": ranges})
