"""Decodes rows with an operation, such as those of AWS DMS: a record of a change file -> a change event."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cdc_pipeline.record import TableName
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.change_files import ChangeFilesSource
from cdc_pipeline.sources.debezium.envelope import LAST_TIME, EnvelopeEvent, Fields, Skipped
from cdc_pipeline.sources.debezium.one_line import Undecodable, printable
from cdc_pipeline.sources.debezium.versions import encoded_field
from cdc_pipeline.sources.files.csv_batches import row_again
from cdc_pipeline.sources.files.dms_octets import octet_columns, with_octets
from cdc_pipeline.sources.files.record_blocks import read_record
from cdc_pipeline.time_slice import EPOCH
from cdc_pipeline.types import declared_type

ORDER = "order"
"""The field of an event that has the values by which events are ordered: a dictionary with the keys "0", "1", …"""
_OPERATIONS = {"insert": "c", "update": "u", "delete": "d", "truncate": "t"}
_MICROSECOND = timedelta(microseconds=1)
_DMS_OPERATION = "Op"
_OF_BYTES = ("bytea", "bit", "varbit")
"""Types whose values are bytes in a file."""


def csv_columns(source: ChangeFilesSource, columns: Collection[str]) -> tuple[str, ...]:
    """Returns the columns of a CSV file without a header: operation and time, if there are any, then the table's.

    One that the table declares, too, is in the file once, at its first place.
    """
    names = dict.fromkeys((operation_column(source), source.time_column, *columns))
    return tuple(name for name in names if name is not None)


def known_by(source: ChangeFilesSource, table: TableSettings) -> tuple[str, ...]:
    """Returns the columns that show that names are names: without them no row of the file could be applied."""
    named = operation_column(source)
    return (tuple(table.id) or tuple(table.columns)) if named is None else (named,)


def operation_column(source: ChangeFilesSource) -> str | None:
    return source.operation_column or (_DMS_OPERATION if source.format == "dms" else None)


def own_columns(source: ChangeFilesSource) -> frozenset[str]:
    """Returns the columns that say what a row does, and when. The table has those that pipeline.yml declares."""
    names = (operation_column(source), source.time_column, *source.order_by)
    return frozenset(name for name in names if name is not None)


def text_columns(types: Mapping[str, str]) -> frozenset[str]:
    """Returns the columns whose bytes in a file can only be the bytes of a text."""
    return frozenset(name for name, type_ in types.items() if not declared_type(type_).startswith(_OF_BYTES))


def order_fields(count: int) -> tuple[str, ...]:
    """Returns the fields that order events, as `sequence_by` names them."""
    return tuple(f"{ORDER}.{number}" for number in range(count))


def row_event(text: bytes, table: TableSettings, source: ChangeFilesSource) -> EnvelopeEvent | Skipped:
    """Returns the event of one row. Raises Undecodable."""
    record = read_record(row_again(text, source.csv, csv_columns(source, table.columns)))
    if record is None:
        return Skipped(kind="blank line")
    named = operation_column(source)
    operation = "insert" if named is None else _operation(record, named, source)
    if operation == "ignore":
        return Skipped(kind="row with an ignored operation")
    old = {name: record[name] for name in old_names(record, source.before_prefix, table.columns)}
    own = own_columns(source) - set(table.columns)
    row: Fields = {name: value for name, value in record.items() if name not in own and name not in old}
    old_row: Fields = {name.removeprefix(source.before_prefix): value for name, value in old.items()}
    if source.format == "dms":
        octets = octet_columns(table.columns, table.id if operation == "delete" else ())
        row, old_row = with_octets(row, octets), with_octets(old_row, octets)
    before = shown_before(old_row)
    images = {
        "insert": (None, row),
        "update": (before, row),
        "delete": ({**row, **(before or {})}, None),
        "truncate": (None, None),
    }
    return table_event(
        table.table,
        operation=_OPERATIONS[operation],
        images=images[operation],
        order=[_ordering(record, name) for name in source.order_by],
        commit_time=None if source.time_column is None else time_of(record.get(source.time_column), source.time_column),
        connector=source.format,
        key_fields={},  # rows show no id: a table without id in pipeline.yml has none
    )


def shown_before(image: Fields) -> Fields | None:
    """Returns a before image; None for one that is NULL in every column, as writers fill one that they do not have."""
    return image if any(value is not None for value in image.values()) else None


def table_event(
    table: TableName,
    *,
    operation: str,
    images: tuple[Fields | None, Fields | None],
    order: list[object],
    commit_time: int | None,
    connector: str,
    key: Fields | None = None,
    key_fields: Fields | None = None,
    transaction: str | None = None,
) -> EnvelopeEvent:
    """Returns the event as Debezium would have written it. `images`: the row before and after."""
    before, after = images
    value: dict[str, Any] = {"op": operation, "before": before, "after": after}
    value[ORDER] = {str(number): part for number, part in enumerate(order)}
    where = {"db": table.database, "schema": table.schema, "table": table.table, "connector": connector}
    return EnvelopeEvent(
        operation=operation,
        value=value,
        source=where,
        key=key,
        headers=None,
        fields=None,
        key_fields=key_fields,
        transaction=transaction,
        commit_time=commit_time,
    )


def time_of(value: object, name: str) -> int | None:
    """Returns an ISO time in microseconds since 1970, without an offset in UTC. None for NULL. Raises Undecodable."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(str(value).strip())
        known = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        found = (known - EPOCH) // _MICROSECOND
    except (ValueError, OverflowError) as error:
        raise Undecodable(f"has a {name} that is no time: {printable(str(value))!r}") from error
    if not 0 <= found < LAST_TIME:
        raise Undecodable(f"has a {name} that is no time between the years 1970 and 9000: {printable(str(value))!r}")
    return found


def _operation(record: Fields, name: str, source: ChangeFilesSource) -> str:
    if name not in record:
        raise Undecodable(f"has no {name}, which says what the row does")
    text = operation_text(record[name])
    operation = source.operation_of(text)
    if operation is None:
        raise Undecodable(f"has the unknown operation {printable(text)!r} in {name}")
    return operation


def old_names(names: Collection[str], prefix: str, declared: Collection[str]) -> tuple[str, ...]:
    """Returns the names of the old row's columns. A column that pipeline.yml declares is a column of the row."""
    return tuple(
        name
        for name in names
        if name not in declared and name.startswith(prefix) and name.removeprefix(prefix) in names
    )


def operation_text(value: object) -> str:
    """Returns the value of an operation column as `operations` in pipeline.yml has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _ordering(record: Fields, name: str) -> object:
    """Returns the value of a column of `order_by`. Raises LineRefused, under the column's name, if it cannot order."""
    if record.get(name) is None:
        raise Undecodable(f"has no version: {name}, which order_by names, is missing or NULL")
    encoded_field(record[name], name)
    return record[name]
