"""Tables of DynamoDB as a source: attribute values with their types -> change events."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import Any

import msgspec

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.aws import DynamodbSource
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, Fields, Skipped
from cdc_pipeline.sources.debezium.one_line import LineRefused, Undecodable, attempt, parsed_json, printable
from cdc_pipeline.sources.debezium.partition import Content, SourceLine
from cdc_pipeline.sources.files.record_blocks import read_record
from cdc_pipeline.sources.files.row_format import time_of
from cdc_pipeline.sources.kinesis.shards import ShardClient
from cdc_pipeline.sources.kinesis.source import ShardSource
from cdc_pipeline.types import declared_type

_OPERATIONS = {"INSERT": "c", "MODIFY": "u", "REMOVE": "d"}
_NESTED = frozenset({"M", "L", "SS", "NS", "BS"})
_JSON = frozenset({"json", "jsonb"})
_WRITER = msgspec.json.Encoder(decimal_format="number")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecords:
    """Decodes records of `tables`, by the name of their stream. `rest_column`: gets what is no column, as JSON."""

    tables: Mapping[str, TableSettings]
    rest_column: str | None

    def content(self, raw: SourceLine) -> Content:
        """Returns the content of a record, or why it cannot be read. Raises nothing for a damaged one."""
        table = self.tables.get(raw.file.rpartition(" ")[0])
        return attempt(lambda: self._event(raw.text, table))

    def _event(self, text: bytes, table: TableSettings | None) -> EnvelopeEvent | Skipped:
        record = read_record(text)
        if record is None:
            return Skipped(kind="blank line")
        change, name = record.get("dynamodb"), record.get("eventName")
        operation = _OPERATIONS.get(str(name))
        if table is None or not isinstance(change, dict):
            raise Undecodable("is no record of a stream of a listed table")
        if operation is None:
            raise Undecodable(f"has the unknown operation {printable(repr(name))}")
        before = change.get("OldImage") or change.get("Keys")
        after = None if operation == "d" else change.get("NewImage")
        if operation != "d" and not isinstance(after, dict):
            raise Undecodable("has no NewImage: the row is missing")
        return EnvelopeEvent(
            operation=operation,
            value={"op": operation, "before": self._old_row(before, table), "after": self._row(after, table)},
            source={"schema": table.table.schema, "table": table.table.table, "connector": "dynamodb"},
            key=None,
            headers=None,
            fields=None,
            key_fields=None,
            transaction=None,
            commit_time=time_of(change.get("ApproximateCreationDateTime"), "ApproximateCreationDateTime"),
        )

    def _row(self, image: object, table: TableSettings) -> Fields | None:
        """Returns every column of the table. An attribute that the row does not have is NULL."""
        if not isinstance(image, dict):
            return None
        own = [name for name in table.columns if name != self.rest_column]
        row = {name: _value(image[name], name, table.columns[name]) if name in image else None for name in own}
        if self.rest_column is not None:
            rest = {name: _plain(value) for name, value in image.items() if name not in own}
            row[self.rest_column] = _WRITER.encode(rest).decode() if rest else None
        return row

    def _old_row(self, image: object, table: TableSettings) -> Fields | None:
        """Returns an old item without its texts that are no JSON and not of the id: only the id is needed."""
        if not isinstance(image, dict):
            return None
        unfit = {
            name
            for name in image.keys() & table.columns.keys() - set(table.id)
            if _is_no_json(image[name], table.columns[name])
        }
        row = self._row({name: typed for name, typed in image.items() if name not in unfit}, table) or {}
        return {name: value for name, value in row.items() if name not in unfit}


def _value(typed: object, name: str, type_name: str) -> object:
    """Returns the value of a column: maps, lists and sets as JSON. Raises Undecodable for a text that is none."""
    if _is_no_json(typed, type_name):
        raise Undecodable(f"has a text in {name} that is no JSON")
    (kind, _), plain = _parts(typed), _plain(typed)
    return _WRITER.encode(plain).decode() if kind in _NESTED else plain


def _is_no_json(typed: object, type_name: str) -> bool:
    """Returns whether the value is a text that is no JSON, in a column of JSON."""
    kind, value = _parts(typed)
    if not (kind == "S" and isinstance(value, str) and _is_json(type_name)):
        return False
    return isinstance(attempt(partial(parsed_json, value)), LineRefused)


@cache
def _is_json(type_name: str) -> bool:
    return declared_type(type_name) in _JSON


def _plain(typed: object) -> Any:
    """Returns an attribute value without its types. Numbers keep every digit; bytes are texts in base64."""
    kind, value = _parts(typed)
    match kind, value:
        case ("S" | "B", str()) | ("BOOL", bool()) | ("SS" | "BS", list()):
            return value
        case "N", str():
            return parsed_json(value)
        case "NULL", _:
            return None
        case "M", dict():
            return {name: _plain(part) for name, part in value.items()}
        case "L", list():
            return [_plain(part) for part in value]
        case "NS", list():
            return [parsed_json(part) for part in value]
        case _:
            raise Undecodable(f"has an attribute value of the unknown type {printable(repr(kind))}")


def _parts(typed: object) -> tuple[str, object]:
    if not isinstance(typed, dict) or len(typed) != 1:
        raise Undecodable(f"has an attribute value without one type: {printable(repr(typed))}")
    ((kind, value),) = typed.items()
    return str(kind), value


def dynamodb_source(
    settings: DynamodbSource, *, stream: str, tables: tuple[TableSettings, ...], connect: Callable[[], ShardClient]
) -> ShardSource:
    """Builds the source for tables of DynamoDB. `stream`: the pipeline's name.

    Raises SettingsError if two tables have one name in DynamoDB.
    """
    by_name: dict[str, TableSettings] = {}
    for table in tables:
        name = settings.name_of(table.table)
        if name in by_name:
            raise SettingsError(
                f"{by_name[name].name} and {table.name} are both {name!r} in DynamoDB",
                expected="one table of DynamoDB per table: a record does not name its table",
                remedy="write {schema} and {table} into source.table in pipeline.yml",
            )
        by_name[name] = table
    return ShardSource(
        stream=stream,
        kind=settings.kind,
        tables=tables,
        stream_of=settings.name_of,
        connect=connect,
        decode_line=TableRecords(tables=by_name, rest_column=settings.rest_column).content,
        begins_kept=settings.begin == "kept",
        pause=timedelta(seconds=1) / settings.reads_per_second,
        unfit={table.table: why for table in tables if (why := _why_unfit(table, settings.rest_column))},
    )


def _why_unfit(table: TableSettings, rest_column: str | None) -> str:
    if not (table.columns and table.id):
        return "items of DynamoDB have no schema: the table needs id and columns in pipeline.yml"
    if rest_column is not None and rest_column not in table.columns:
        return f"rest_column is {rest_column}, and columns of {table.name} does not have it"
    return ""
