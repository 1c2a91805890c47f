"""Blocks of consecutive records of a change file: their columns, and each record as one line of JSON."""

import json
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import cached_property, partial
from itertools import chain
from typing import Protocol, TypeAlias
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_pipeline.sources.debezium.envelope import Fields
from cdc_pipeline.sources.debezium.one_line import BLANK, Undecodable, attempt, fast_objects, json_of_line, parsed_json
from cdc_pipeline.sources.files.partition_files import LINE_MASK, RawLine
from cdc_pipeline.types import of_one_kind

UNREAD, WHY = "_cdc_unread", "_cdc_why"
"""Keys of the record that stands for a row of a CSV file that has too few or too many fields: its text, and why."""
_FEWEST_ROWS = 16
_NOT_HELD = (OverflowError, ValueError, KeyError)
_AS_JSON = frozenset({str, int, bool, type(None)})
"""Types whose values are the same before and after JSON."""

Column: TypeAlias = "pa.Array | list[object]"
"""Values of records: as an Arrow array, or as JSON has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Records of a block that have the same columns. `rows`: their numbers in the block, rising."""

    rows: npt.NDArray[np.int64]
    columns: Mapping[str, Column]


class RecordBlock(Protocol):
    """Consecutive records of one file."""

    @property
    def rows(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...

    def slice(self, start: int, rows: int) -> "RecordBlock":
        """Returns `rows` records from `start` on, fewer at the end of the block."""

    def line(self, row: int) -> bytes:
        """Returns one record as one line of JSON."""

    def columns(self) -> Iterator[RecordColumns]:
        """Returns the columns of records that are alike. Leaves out what cannot be read, and what few records have."""


@dataclass(frozen=True, kw_only=True)
class BatchBlock:
    """Records as Arrow columns. A row whose last column, UNREAD, is not NULL is that line of JSON."""

    batch: pa.RecordBatch

    @property
    def rows(self) -> int:
        return int(self.batch.num_rows)

    @property
    def size_bytes(self) -> int:
        return int(self.batch.nbytes)

    def slice(self, start: int, rows: int) -> "BatchBlock":
        return BatchBlock(batch=self.batch.slice(start, rows))

    def line(self, row: int) -> bytes:
        unread: bytes | None = self.batch.column(self.batch.num_columns - 1)[row].as_py()
        if unread is not None:
            return unread
        return json_line({name: values[row] for name, values in self._plain.items()})

    def columns(self) -> Iterator[RecordColumns]:
        *columns, unread = self.batch.columns
        rows = np.arange(self.rows)
        if unread.null_count < self.rows:
            read = unread.is_null()
            rows, columns = rows[np.asarray(read)], [column.filter(read) for column in columns]
        names = self.batch.schema.names[:-1]
        yield RecordColumns(rows=rows, columns=dict(zip(names, columns, strict=True)))

    @cached_property
    def _plain(self) -> Mapping[str, Sequence[object]]:
        names, columns = self.batch.schema.names[:-1], self.batch.columns[:-1]
        return {name: plain_values(column) for name, column in zip(names, columns, strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBlock:
    """Records as lines of JSON."""

    lines: Sequence[bytes]

    @property
    def rows(self) -> int:
        return len(self.lines)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.lines))

    def slice(self, start: int, rows: int) -> "LineBlock":
        return LineBlock(lines=self.lines[start : start + rows])

    def line(self, row: int) -> bytes:
        return self.lines[row]

    def columns(self) -> Iterator[RecordColumns]:
        records: Sequence[object] | None = fast_objects(self.lines)
        if records is None:
            records = [attempt(partial(read_record, line)) for line in self.lines]
        return _alike(records, list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectBlock:
    """Records as Avro has them: dictionaries of Python's values. `size_bytes`: of the block in its file."""

    records: Sequence[object]
    size_bytes: int

    @property
    def rows(self) -> int:
        return len(self.records)

    def slice(self, start: int, rows: int) -> "ObjectBlock":
        records = self.records[start : start + rows]
        return ObjectBlock(records=records, size_bytes=self.size_bytes * len(records) // max(len(self.records), 1))

    def line(self, row: int) -> bytes:
        return json_line(self.records[row])

    def columns(self) -> Iterator[RecordColumns]:
        return _alike(self.records, as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedBlock:
    """Consecutive records of one file. `place`: the first one's offset; those of the others follow it.

    `written`: as for `RawLine`. `digest`: of the file, up to any of the records; `last_digest`: after the last one.
    """

    block: RecordBlock
    place: int
    file: str
    written: int
    digest: str
    last_digest: str

    def line_number(self, row: int) -> int:
        return ((self.place + row) & LINE_MASK) + 1

    def raw_line(self, row: int) -> RawLine:
        """Returns one record as a line."""
        place, number = self.place + row, self.line_number(row)
        return RawLine(place=place, file=self.file, number=number, text=self.block.line(row), written=self.written)


def read_record(text: bytes) -> Fields | None:
    """Parses a record, None for a blank line. Raises Undecodable for what is no JSON object, and for an unread row."""
    record = json_of_line(text)
    if record is BLANK:
        return None
    if not isinstance(record, dict):
        raise Undecodable("is no JSON object")
    if UNREAD in record:
        raise Undecodable(str(record.get(WHY)))
    return record


def json_line(record: object) -> bytes:
    return json.dumps(record, default=_plain, separators=(",", ":")).encode()


def plain_values(column: pa.Array) -> Sequence[object]:
    """Returns the values of a column as a line of JSON is made of them. Times and decimals become texts.

    So does a nested value that Python cannot hold, such as a date after the year 9999.
    """
    kind = column.type
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        column = _as_texts(column)
    try:
        values: list[object] = column.to_pylist()
    except _NOT_HELD:
        values = [_held(value) for value in column]
    return values


def _as_texts(column: pa.Array) -> pa.Array:
    """Returns times and decimals as texts; times of a zone that nobody knows in UTC."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return column.cast(pa.timestamp(column.type.unit, "UTC")).cast(pa.string())


def _held(value: pa.Scalar) -> object:
    """Returns a value in Python's types: what is nested part by part, and as text what Python cannot hold."""
    try:
        return value.as_py()
    except _NOT_HELD:
        pass
    if isinstance(value, pa.StructScalar):
        return {field.name: _held(value[number]) for number, field in enumerate(value.type)}
    if isinstance(value, pa.MapScalar):
        return [(_held(entry[0]), _held(entry[1])) for entry in value.values]
    if isinstance(value, pa.ListScalar):
        return [_held(part) for part in value.values]
    return str(_as_texts(pa.array([value], value.type))[0])


def as_json(values: Sequence[object]) -> list[object]:
    """Returns the values as they are once they were written to JSON and read again."""
    if frozenset(map(type, values)) <= _AS_JSON:
        return list(values)
    return [value if type(value) in _AS_JSON else parsed_json(json_line(value).decode()) for value in values]


def _alike(records: Sequence[object], of_json: Callable[[Sequence[object]], list[object]]) -> Iterator[RecordColumns]:
    """Puts records with the same fields together. Those that few others are like are left out.

    `of_json`: returns values as they are once they were written to JSON and read again.
    """
    groups = defaultdict[tuple[object, ...], list[int]](list)
    for row, record in enumerate(records):
        if isinstance(record, dict):
            groups[tuple(record)].append(row)
    for names, rows in groups.items():
        if len(rows) >= _FEWEST_ROWS and UNREAD not in names:
            found = [record for row in rows if isinstance(record := records[row], dict)]
            values = list(chain.from_iterable(map(dict.values, found)))
            columns = {str(name): _column(of_json(values[at :: len(names)])) for at, name in enumerate(names)}
            yield RecordColumns(rows=np.array(rows), columns=columns)


def _column(values: list[object]) -> Column:
    column = of_one_kind(values)
    return values if column is None else column


def _plain(value: object) -> object:
    """Renders what JSON lacks, as Debezium's JSON writes it."""
    match value:
        case bytes():
            return b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
    message = f"a value of the type {type(value).__name__}"
    raise TypeError(message)
