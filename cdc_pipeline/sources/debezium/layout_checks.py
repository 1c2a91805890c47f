"""Refuses tables whose columns, as their events show them, cannot be read or would make the lake wrong."""

from collections.abc import Collection, Mapping

from cdc_pipeline.errors import SettingsError, SourceError
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, Fields
from cdc_pipeline.sources.debezium.one_line import printable
from cdc_pipeline.sources.table_checks import check_column_names, check_id_types
from cdc_pipeline.types import declared_type, resolve, wider

_MOST_COLUMNS = 4_096
_FLOATS = frozenset({"double", "float64", "float", "float32"})
_EXACT = ("numeric", "decimal", "money")
_SOURCE_TYPE = "__debezium.source.column.type"
"""What the connector writes beside a column's type if `column.propagate.source.type` names the column."""


def refuse_rounded(settings: TableSettings, fields: Mapping[str, Fields]) -> None:
    """Raises SourceError for a decimal column that the connector sends as a double (`decimal.handling.mode`).

    The column is known as a decimal if pipeline.yml declares it so, or if the events' schema has the source's type.
    """
    for name, field in fields.items():
        if field.get("type") in _FLOATS and _is_exact(settings.columns.get(name), field):
            raise SourceError(
                f"the column {name} of {settings.name} is a decimal, and its events round it to {field['type']}",
                expected="decimal.handling.mode = precise or string in the connector",
                remedy=f"change the connector and have it send the rows again; or declare {name} as float8",
            )


def refuse_other_types(settings: TableSettings, known: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raises SourceError for a column whose old and new type do not hold each other's values: no lake can follow it."""
    for name, type_ in found.items():
        was, now = (resolve(each).spark for each in (known.get(name, type_), type_))
        if not (wider(was, now) or wider(now, was)):
            raise SourceError(
                f"the column {name} of {settings.name} was {known[name]}, and an event has it as {type_}",
                expected="a type that holds all values of the one before",
                remedy=f"declare {name} under columns with the type that the lake has, then run cdc quarantine replay;"
                " for another type, read the events again under another name and lake",
            )


def _is_exact(declared: str | None, field: Fields) -> bool:
    if declared is not None:
        return declared_type(declared).startswith(_EXACT)
    parameters = field.get("parameters")
    source = parameters.get(_SOURCE_TYPE) if isinstance(parameters, dict) else None
    return isinstance(source, str) and source.lower().startswith(_EXACT)


def refuse_coarse_key(event: EnvelopeEvent, schema: TableSchema, settings: TableSettings) -> None:
    """Raises SourceError for events of a compacted topic whose key several rows share."""
    outside = [name for name in schema.key if name not in (event.key or {})]
    if outside:
        raise SourceError(
            f"the compacted topic of {settings.name} keeps one record of each key, and its key lacks {outside[0]}",
            expected=f"a key with the columns of the id: {', '.join(schema.key)}",
            remedy="correct id in pipeline.yml, or message.key.columns of the connector",
        )


def without_types(settings: TableSettings) -> SettingsError:
    return SettingsError(
        f"the column types of {settings.name} are not known: its events carry no schema",
        expected="events with schema and payload, or columns in pipeline.yml",
        remedy=f"list its columns, such as columns: {{id: int8, name: text}} under {settings.name}",
    )


def other_key(key: Fields, schema: TableSchema, settings: TableSettings) -> SourceError:
    """Returns the error for an event whose key has columns outside of the id: rows with one id may be several."""
    now, known = (", ".join(map(printable, names)) for names in (key, schema.key))
    return SourceError(
        f"the key of {settings.name} is ({now}), and its registered id is ({known})",
        expected="events whose key has no other columns than the id: other rows may have an equal id",
        remedy=f"if ({known}) is still unique, give it as id under {settings.name} and run cdc quarantine replay;"
        " if not, read the events again under another name and lake",
    )


def refuse_dropped_columns(table: TableName, gone: Collection[str]) -> None:
    """Raises SourceError if the lake's rows have columns that the old row of an event does not show any more: `gone`.

    The row would not be found, and would stay. With several stream partitions the event may be older than the column.
    """
    if gone:
        raise SourceError(
            f"an update or delete of {table}, which has no id, came without the column {min(gone)} that earlier events"
            " had",
            expected="old rows with all columns that the lake's rows have",
            remedy=f"read {table} again from its first event under another name, with an id or without that column",
        )


def check_layout(schema: TableSchema, settings: TableSettings) -> None:
    named = [*schema.key, settings.create_time, settings.update_time, *(part.column for part in settings.partition_by)]
    unknown = next((name for name in named if name is not None and name not in schema.names), None)
    if unknown is not None:
        raise SettingsError(
            f"the table {settings.name} has no column {unknown!r}",
            expected=f"one of {', '.join(sorted(schema.names))}",
            remedy="correct id, columns, create_time, update_time or partition_by in pipeline.yml",
        )
    check_id_types(settings, schema)
    check_column_names(settings, schema.names)
    if len(schema.names) > _MOST_COLUMNS:
        raise SourceError(
            f"the table {settings.name} has {len(schema.names)} columns",
            expected=f"at most {_MOST_COLUMNS}",
            remedy="correct the events",
        )
