"""Blocks of consecutive records of a change file: their columns, and each record as one line of JSON."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_pipeline.sources.debezium.envelope import Fields
from cdc_pipeline.sources.debezium.one_line import (
    BLANK,
    LineRefused,
    Undecodable,
    attempt,
    fast_objects,
    json_of_line,
)
from cdc_pipeline.sources.files.partition_files import LINE_MASK, RawLine
from cdc_pipeline.sources.files.record_values import Column, as_json, json_line, plain_values, readable_column, taken
from cdc_pipeline.types import of_one_kind

UNREAD, WHY = "_cdc_unread", "_cdc_why"
"""Keys of the record that stands for a row that cannot be read: what is there of it, and why it cannot be read."""
_FEWEST_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Records of a block that have the same columns. `rows`: their numbers in the block, rising."""

    rows: npt.NDArray[np.int64]
    columns: Mapping[str, Column]


@dataclass(frozen=True, kw_only=True)
class BatchBlock:
    """Records as Arrow columns. A row whose last column, UNREAD, is not NULL is that line of JSON."""

    batch: pa.RecordBatch

    @property
    def names(self) -> list[str]:
        return list(self.batch.schema.names[:-1])

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
        rows = np.flatnonzero(np.asarray(unread.is_null()))
        found = [readable_column(column) for column in columns]
        if len(rows) < self.rows:
            found = [taken(column, rows) for column in found]
        yield RecordColumns(rows=rows, columns=dict(zip(self.names, found, strict=True)))

    @cached_property
    def _plain(self) -> Mapping[str, Sequence[object]]:
        columns = zip(self.names, self.batch.columns[:-1], strict=True)
        return {name: plain_values(column) for name, column in columns}


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


RecordBlock = BatchBlock | LineBlock | ObjectBlock
"""Consecutive records of one file.

`columns` returns the columns of records that are alike, without what cannot be read, and what few records have.
"""


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
        return RawLine(
            place=self.place + row,
            file=self.file,
            number=self.line_number(row),
            text=record_line(self.block, row),
            written=self.written,
            digest=self.last_digest if row == self.block.rows - 1 else self.digest,
        )


def read_record(text: bytes) -> Fields | None:
    """Parses a record, None for a blank line. Raises Undecodable for what is no JSON object, and for an unread row."""
    record = json_of_line(text)
    if record is BLANK:
        return None
    if not isinstance(record, dict):
        raise Undecodable("is no JSON object")
    if UNREAD in record:
        raise Undecodable(str(record.get(WHY, f"has the key {UNREAD}, which only rows that cannot be read may have")))
    return record


def record_line(block: RecordBlock, row: int) -> bytes:
    """Returns one record as one line of JSON. One that JSON cannot hold becomes a line that says why."""
    line = attempt(partial(block.line, row))
    return json_line({UNREAD: None, WHY: str(line)}) if isinstance(line, LineRefused) else line


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
