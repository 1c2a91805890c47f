"""Turns blocks of exported records into rows of their table, column by column. Other records are read one by one."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.record import Column as TableColumn
from cdc_pipeline.record import TableSchema
from cdc_pipeline.sources.copied_rows import CopiedRows, UnfitRow
from cdc_pipeline.sources.debezium.envelope import Fields
from cdc_pipeline.sources.debezium.one_line import LineRefused, attempt, printable
from cdc_pipeline.sources.files.dms_octets import whole_octets
from cdc_pipeline.sources.files.mysql_values import is_of_mysql, mysql_column
from cdc_pipeline.sources.files.record_blocks import RecordBlock, read_record, record_line
from cdc_pipeline.sources.files.record_values import Column, parsed_column
from cdc_pipeline.sources.files.row_images import without_rows
from cdc_pipeline.types import Parsed, arrow_schema, parse_foreign_text, resolve
from cdc_pipeline.types.masks import either, without


class ExportForm(Enum):
    """Which values of an export are written in another way than those of a change file."""

    PLAIN = auto()
    BY_COPY = auto()
    """All are texts; arrays and bits are as PostgreSQL's COPY writes them."""
    OF_MYSQL = auto()
    """Bits and times are as MySQL has them."""
    BY_DMS = auto()
    """Bytes are as AWS DMS writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRows:
    """The rows of one block. `names`: the fields of the first record that can be read, None if none can."""

    copied: CopiedRows
    names: Collection[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Records of a block, as columns of the table. `numbers`: theirs in the block, rising."""

    numbers: npt.NDArray[np.int64]
    names: Collection[str]
    columns: Sequence[Parsed]


def exported_rows(
    block: RecordBlock, schema: TableSchema, unit: str, first: int, form: ExportForm = ExportForm.PLAIN
) -> ExportedRows:
    """Leaves out blank lines. `unit`: the file, and whether lines or rows are counted. `first`: the first record's."""
    part_of = partial(_part, schema=schema, form=form)
    typed = attempt(lambda: [part_of(found.rows, found.columns) for found in block.columns()])
    parts = [] if isinstance(typed, LineRefused) else typed
    others = set(range(block.rows)).difference(*(part.numbers.tolist() for part in parts))
    records, unread = _read(block, sorted(others))
    begins = [(int(part.numbers[0]), part.names) for part in parts if len(part.numbers)]
    begins += [(number, record.keys()) for number, record in records.items() if number not in unread][:1]
    columns = {name: [record.get(name) for record in records.values()] for name in schema.names}
    parts.append(part_of(np.array(list(records), np.int64), columns))
    numbers = np.concatenate([part.numbers for part in parts])
    order = np.argsort(numbers)
    numbers = numbers[order]
    refused = {row: ("", unread[number]) for row, number in enumerate(numbers.tolist()) if number in unread}
    values = [
        _values(column, [part.columns[at] for part in parts], order, schema, refused)
        for at, column in enumerate(schema.columns)
    ]
    copied = CopiedRows(
        rows=pa.RecordBatch.from_arrays(values, schema=arrow_schema(schema)),
        unfit_rows=tuple(
            UnfitRow(
                row=row,
                column=refused[row][0],
                reason=f"{unit} {first + int(numbers[row])}: {printable(refused[row][1])}",
                texts=_texts(block, int(numbers[row]), schema),
            )
            for row in sorted(refused)
        ),
    )
    return ExportedRows(copied=copied, names=min(begins, default=(0, None), key=lambda begin: begin[0])[1])


def _part(
    numbers: npt.NDArray[np.int64], columns: Mapping[str, Column], schema: TableSchema, form: ExportForm
) -> _Part:
    parsed = list[Parsed]()
    for column in schema.columns:
        parse = parsed_column
        if form is ExportForm.BY_COPY and _is_copied_apart(column.type):
            parse = _copied_column
        elif form is ExportForm.OF_MYSQL and is_of_mysql(column.type):
            parse = mysql_column
        elif form is ExportForm.BY_DMS and column.type == "bytea":
            parse = _dms_column
        parsed.append(parse(columns.get(column.name, [None] * len(numbers)), column.type))
    return _Part(numbers=numbers, names=columns.keys(), columns=parsed)


def _dms_column(column: Column, type_name: str) -> Parsed:
    octets, alone = whole_octets(column)
    parsed = parsed_column(without_rows(octets, alone), type_name)
    return Parsed(values=parsed.values, unfit=either(pa.array(alone), parsed.unfit))


def _is_copied_apart(type_name: str) -> bool:
    """Whether COPY writes a text that JSON has no value like: an array in braces, bits as digits."""
    return resolve(type_name).element is not None or _is_of_bits(type_name)


def _is_of_bits(type_name: str) -> bool:
    return type_name.partition("(")[0] in ("bit", "varbit")


def _copied_column(column: Column, type_name: str) -> Parsed:
    if isinstance(column, list):
        octets = [None if value is None else str(value).encode(errors="surrogatepass") for value in column]
        column = pa.array(octets, pa.binary())
    parsed = parse_foreign_text(column, resolve(type_name))
    if not _is_of_bits(type_name):
        return parsed
    odd = pc.invert(pc.fill_null(pc.match_substring_regex(parsed.values, "^[01]*$"), fill_value=True))
    return Parsed(values=without(parsed.values, odd), unfit=either(parsed.unfit, odd))


def _read(block: RecordBlock, numbers: Sequence[int]) -> tuple[dict[int, Fields], dict[int, str]]:
    """Returns records by their number, without blank lines, and why some cannot be read; these have no fields."""
    records, unread = dict[int, Fields](), dict[int, str]()
    for number in numbers:
        line = record_line(block, number)
        found = attempt(partial(read_record, line))
        if isinstance(found, LineRefused):
            unread[number] = f"{found}: {printable(line.decode(errors='backslashreplace'))}"
            found = {}
        if found is not None:
            records[number] = found
    return records, unread


def _values(
    column: TableColumn,
    parts: Sequence[Parsed],
    order: npt.NDArray[np.int64],
    schema: TableSchema,
    refused: dict[int, tuple[str, str]],
) -> pa.Array:
    """Returns the values of one column; adds the rows whose value does not fit, or whose id is NULL, to `refused`."""
    values = pa.concat_arrays([parsed.values for parsed in parts]).take(pa.array(order))
    for row in np.flatnonzero(np.concatenate([_unfit(parsed) for parsed in parts])[order]).tolist():
        refused.setdefault(row, (column.name, f"the value of {column.name} does not fit the lake's {column.type}"))
    if column.name in schema.key:
        for row in np.flatnonzero(np.asarray(values.is_null())).tolist():
            refused.setdefault(row, (column.name, f"the id column {column.name} is NULL"))
    return values


def _unfit(parsed: Parsed) -> npt.NDArray[np.bool_]:
    if parsed.unfit is None:
        return np.zeros(len(parsed.values), np.bool_)
    return np.asarray(pc.fill_null(parsed.unfit, fill_value=False))


def _texts(block: RecordBlock, number: int, schema: TableSchema) -> dict[str, bytes | None]:
    """Returns the values of a record as the source's texts; NULL for a record that cannot be read."""
    records, _ = _read(block, [number])
    return {name: _text(records[number].get(name)) for name in schema.names}


def _text(value: object) -> bytes | None:
    """Returns a value as PostgreSQL's text, for quarantine, without NUL, which PostgreSQL does not hold."""
    match value:
        case None:
            return None
        case bool():
            text = "t" if value else "f"
        case dict() | list():
            text = json.dumps(value, default=str)
        case _:
            text = str(value)
    return printable(text, most=len(text)).encode()
