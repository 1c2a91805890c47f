"""Finds the table of an event, the table's id, and the types of its columns."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import structlog

from cdc_pipeline.errors import SettingsError, SourceError, UsageError
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, Fields
from cdc_pipeline.sources.debezium.layout_checks import (
    check_layout,
    other_key,
    refuse_coarse_key,
    refuse_other_types,
    refuse_rounded,
    without_types,
)
from cdc_pipeline.sources.debezium.one_line import Undecodable, is_storable, printable
from cdc_pipeline.sources.table_checks import check_excluded
from cdc_pipeline.types import debezium_column, resolve, wider, widest

log = structlog.get_logger()

_MOST_NOTES = 100
_FLOAT4 = "FLOAT"


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """The columns of a table, as a run of its events writes them.

    `fields`: Debezium's schema of each column, empty if the events carry none. `schema` has every column that the table
    ever had. A column that an event lacks did not exist when the event was written. `gone`: columns that no longer do.
    `id_of_keys`: the id is the columns of the events' keys, since pipeline.yml names none.
    """

    table: TableName
    schema: TableSchema
    fields: Mapping[str, Fields]
    gone: frozenset[str] = frozenset()
    id_of_keys: bool = False

    @cached_property
    def name(self) -> str:
        return str(self.table)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return self.schema.names

    @cached_property
    def known_names(self) -> frozenset[str]:
        return frozenset(self.schema.names)

    @cached_property
    def key_names(self) -> frozenset[str]:
        return frozenset(self.schema.key)

    def allows(self, keys: Iterable[Fields]) -> bool:
        """Returns whether rows that the events' keys tell apart are told apart by the id, too."""
        return not self.id_of_keys or frozenset[str]().union(*keys) <= self.key_names


class DebeziumTables:
    """The tables of pipeline.yml, as their events show them. `known`: their registered schemas.

    `columns`: every column that they ever had, oldest first. `of_partition`: the table of a stream partition, if each
    has one. `upserts`: tables of compacted topics. `is_only`: False if pipeline.yml lists others, which are not read.
    """

    def __init__(
        self,
        tables: Sequence[TableSettings],
        known: Mapping[TableName, TableSchema],
        of_partition: Mapping[int, TableName] = MappingProxyType({}),
        upserts: Collection[TableName] = (),
        columns: Mapping[TableName, Sequence[Column]] = MappingProxyType({}),
        *,
        is_only: bool = True,
    ) -> None:
        self._tables = tuple(tables)
        self._known = dict(known)
        self._widest = {name: widest((*columns.get(name, ()), *schema.columns)) for name, schema in known.items()}
        self._of_partition = of_partition
        self._upserts = frozenset(upserts)
        self._is_only = is_only
        self._layouts: dict[str, tuple[Fields | None, Layout]] = {}
        self._named: dict[tuple[object, ...], TableSettings] = {}
        self._left_out: set[tuple[TableName, str]] = set()

    def without_name(self, stream_partition: int) -> TableName:
        """Returns the table at which a line that names no table is quarantined."""
        return self._of_partition.get(stream_partition, self._tables[0].table)

    def table_of(self, event: EnvelopeEvent) -> TableSettings | None:
        """Returns the table's settings, None for a table that pipeline.yml does not list.

        An event that names no table belongs to the only listed one. Raises Undecodable if there are several.
        """
        found = event.source.get("table")
        if not isinstance(found, str) or not found:
            if self._is_only and len(self._tables) == 1:
                return self._tables[0]
            raise Undecodable("names no table: it has no source.table")
        names = event.source.get("db"), event.source.get("schema"), found
        try:
            return self._named[names]
        except (KeyError, TypeError):
            table = next((table for table in self._tables if _is_named(table.table, event.source)), None)
            if table is not None and all(isinstance(name, str | None) for name in names):
                self._named[names] = table
            return table

    def layout(self, event: EnvelopeEvent, settings: TableSettings) -> Layout | None:
        """Returns the layout of the event, None for a delete or truncate of a table of which nothing is known yet.

        Raises Undecodable for a damaged schema, SettingsError or SourceError for a table that cannot be read.
        """
        carried, layout = self._layouts.get(settings.name, (None, None))
        is_new = layout is None or (event.fields is not None and event.fields != carried)
        if is_new:
            layout = self._new_layout(event, settings)
        if layout is None:
            return None
        if event.key is not None and not layout.allows((event.key,)):
            raise other_key(event.key, layout.schema, settings)
        if is_new:
            self._layouts[settings.name] = (event.fields, layout)
            self._known[settings.table] = layout.schema
            self._widest[settings.table] = widest((*self._widest.get(settings.table, ()), *layout.schema.columns))
        if not (layout.fields and event.fields) and not (event.after or {}).keys() <= layout.known_names:
            if not settings.columns:
                raise _without_type_of((event.after or {}).keys() - layout.known_names, settings)
            self._note_left_out(event, layout)
        return layout

    def keeps(self, layout: Layout, event: EnvelopeEvent) -> bool:
        """Returns whether `layout`, which was the layout of an event of the table, is the layout of this event too."""
        carried, present = self._layouts[layout.name]
        return present is layout and (event.fields is None or event.fields == carried)

    def is_keyless(self, event: EnvelopeEvent, settings: TableSettings) -> bool:
        """Returns whether the table of the event has no id, also if it cannot be read."""
        return self._key(event, settings) == ()

    def keyless_columns(self, table: TableName) -> tuple[str, ...]:
        """Returns every column that a table without an id had so far, () for other tables."""
        known = self._known.get(table)
        return known.names if known is not None and known.is_keyless else ()

    def _new_layout(self, event: EnvelopeEvent, settings: TableSettings) -> Layout | None:
        fields = _row_fields(event.fields)
        if not fields and not settings.columns and _shows_key_alone(event):
            known = self._known.get(settings.table)
            of_key = _named_fields(event.key_fields or {})
            return None if known is None else _layout(settings, known, of_key)
        refuse_rounded(settings, fields)
        columns = self._columns(settings, fields)
        key = self._key(event, settings)
        if key is None:
            return None
        schema = TableSchema(columns=columns, key=key)
        check_layout(schema, settings)
        if fields and settings.table not in self._known:
            check_excluded(settings, key, schema.names)
        if settings.table in self._upserts:
            refuse_coarse_key(event, schema, settings)
        _note_added(schema, self._known.get(settings.table), settings)
        gone = frozenset(schema.names) - fields.keys() - settings.columns.keys() if fields else frozenset[str]()
        return _layout(settings, schema, fields, gone)

    def _columns(self, settings: TableSettings, fields: Mapping[str, Fields]) -> tuple[Column, ...]:
        declared = settings.columns
        if not fields and not declared:
            raise without_types(settings)
        known = self._known.get(settings.table)
        types = {column.name: column.type for column in (known.columns if known and fields else ())}
        found = {name: _column_type(field, settings) for name, field in fields.items() if name not in declared}
        in_lake = {column.name: column.type for column in self._widest.get(settings.table, ())}
        refuse_other_types(settings, in_lake, found)
        types |= {name: _wide_enough(type_, in_lake.get(name, type_)) for name, type_ in found.items()}
        types |= declared
        return tuple(Column(name=name, type=type_) for name, type_ in types.items())

    def _key(self, event: EnvelopeEvent, settings: TableSettings) -> tuple[str, ...] | None:
        """Returns the columns of the id: the registered ones, else those of pipeline.yml, else the event's key.

        Returns () for a keyless table, None if a truncate is the first event of a table and nothing names its id.
        """
        known = self._known.get(settings.table)
        if known is not None:
            return known.key
        if settings.id:
            return settings.id
        if event.key_fields is not None:
            return tuple(_named_fields(event.key_fields))
        if event.key:
            return tuple(event.key)
        return None if event.operation == "t" else ()

    def _note_left_out(self, event: EnvelopeEvent, layout: Layout) -> None:
        """Logs each column that the event has and pipeline.yml does not declare, once. Such columns are not read."""
        for name in (event.after or {}).keys() - layout.known_names:
            if (layout.table, name) not in self._left_out and len(self._left_out) < _MOST_NOTES:
                self._left_out.add((layout.table, name))
                shown = printable(name)
                log.warning("column not read: pipeline.yml does not list it", table=str(layout.table), column=shown)


def _without_type_of(names: Iterable[str], settings: TableSettings) -> SettingsError:
    return SettingsError(
        f"the type of the new column {', '.join(sorted(map(printable, names)))} of {settings.name} is not known:"
        " its events carry no schema any more",
        expected="events with schema and payload, or columns in pipeline.yml",
        remedy=f"list all columns under {settings.name}: without a schema, columns that are not listed are left out",
    )


def _layout(
    settings: TableSettings, schema: TableSchema, fields: Mapping[str, Fields], gone: frozenset[str] = frozenset()
) -> Layout:
    of_keys = bool(schema.key) and not settings.id
    return Layout(table=settings.table, schema=schema, fields=fields, gone=gone, id_of_keys=of_keys)


def _note_added(schema: TableSchema, known: TableSchema | None, settings: TableSettings) -> None:
    """Logs new columns of a keyless table. Events do not show which value the rows from before have in them."""
    added = [] if known is None or not schema.is_keyless else schema.without(known.names).names
    if added:
        log.warning(
            "columns added to a table without an id",
            table=settings.name,
            columns=[*map(printable, added)],
            found="they are NULL in the lake's rows: no old row with another value there finds one of these",
            remedy="if they have a default, read a new snapshot of the table under another name, or with an id",
        )


def _is_named(table: TableName, source: Fields) -> bool:
    """Returns whether an event's source names the table.

    A source without schemas, such as MySQL, has only a database, which pipeline.yml may name as database or as schema.
    """
    database, schema = source.get("db") or None, source.get("schema") or None
    if source.get("table") != table.table:
        return False
    if schema is None:
        return database in (None, table.database, table.schema)
    return schema == table.schema and database in (None, table.database)


def _shows_key_alone(event: EnvelopeEvent) -> bool:
    """Returns whether the event is a delete as a tombstone shows it, whose key says of what types it is."""
    return event.operation == "d" and event.before is None and event.key_fields is not None


def _row_fields(envelope: Fields | None) -> dict[str, Fields]:
    """Returns the schema of each column from the schema of an envelope. Raises Undecodable for a damaged schema."""
    parts = {} if envelope is None else _named_fields(envelope)
    return _named_fields(parts.get("after") or parts.get("before") or {})


def _named_fields(struct: Fields) -> dict[str, Fields]:
    """Returns the fields of a struct's schema by name. Raises Undecodable for names that are missing or not unique."""
    fields = struct.get("fields")
    found: dict[str, Fields] = {}
    for field in () if fields is None else fields if isinstance(fields, list) else (fields,):
        name = field.get("field") if isinstance(field, dict) else None
        if not isinstance(name, str) or not is_storable(name) or name in found:
            raise Undecodable(f"has a schema whose fields are no list of fields with names of their own: {field!r}")
        found[name] = field
    return found


def _wide_enough(found: str, in_lake: str) -> str:
    """Returns the lake's type of a column if it holds what an event's type has, so that old events begin no new slices.

    A float4 stays one: only the lake makes the float8 of it that the source made, which is not the one of its digits.
    """
    narrow, wide = resolve(found).spark, resolve(in_lake).spark
    return in_lake if narrow not in (wide, _FLOAT4) and wider(narrow, wide) else found


def _column_type(field: Fields, settings: TableSettings) -> str:
    try:
        return debezium_column(field).type
    except UsageError as error:
        raise SourceError(
            f"the column {field.get('field')} of {settings.name} has a type that is not known: {error.found}",
            expected="a type of Kafka Connect",
            remedy=f"give its type under columns of {settings.name} in pipeline.yml",
        ) from error
