"""Turns blocks of exported records into rows of their table, column by column. Other records are read one by one."""

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
from cdc_pipeline.types import Parsed, arrow_schema, parse_foreign_text, printed_text, resolve
from cdc_pipeline.types.debezium_text import json_text
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
    typed_columns = [_in_order([part.columns[at] for part in parts], order) for at in range(len(schema.columns))]
    for column, parsed in zip(schema.columns, typed_columns, strict=True):
        _refuse(column, parsed, schema, refused)
    copied = CopiedRows(
        rows=pa.RecordBatch.from_arrays([parsed.values for parsed in typed_columns], schema=arrow_schema(schema)),
        unfit_rows=tuple(
            UnfitRow(
                row=row,
                column=refused[row][0],
                reason=f"{unit} {first + int(numbers[row])}: {printable(refused[row][1])}",
                texts=_texts(row, _read(block, [int(numbers[row])])[0], schema, typed_columns),
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
            unread[number] = str(found)
            found = {}
        if found is not None:
            records[number] = found
    return records, unread


def _in_order(parts: Sequence[Parsed], order: npt.NDArray[np.int64]) -> Parsed:
    values = pa.concat_arrays([parsed.values for parsed in parts]).take(pa.array(order))
    return Parsed(values=values, unfit=pa.array(np.concatenate([_unfit(parsed) for parsed in parts])[order]))


def _refuse(column: TableColumn, parsed: Parsed, schema: TableSchema, refused: dict[int, tuple[str, str]]) -> None:
    """Adds the rows whose value does not fit, or whose id is NULL, to `refused`."""
    for row in np.flatnonzero(_unfit(parsed)).tolist():
        refused.setdefault(row, (column.name, f"the value of {column.name} does not fit the lake's {column.type}"))
    if column.name in schema.key:
        for row in np.flatnonzero(np.asarray(parsed.values.is_null())).tolist():
            refused.setdefault(row, (column.name, f"the id column {column.name} is NULL"))


def _unfit(parsed: Parsed) -> npt.NDArray[np.bool_]:
    if parsed.unfit is None:
        return np.zeros(len(parsed.values), np.bool_)
    return np.asarray(pc.fill_null(parsed.unfit, fill_value=False))


def _texts(
    row: int, records: Mapping[int, Fields], schema: TableSchema, columns: Sequence[Parsed]
) -> dict[str, bytes | None]:
    """Returns the values of a row as PostgreSQL prints them, and one that does not fit as its record has it.

    `records`: the row's record alone. All is NULL for one that cannot be read.
    """
    (record,) = records.values()
    texts = {
        column.name: _raw_text(record.get(column.name))
        if _unfit(parsed)[row]
        else printed_text(parsed.values[row], resolve(column.type))
        for column, parsed in zip(schema.columns, columns, strict=True)
    }
    return {name: None if text is None else _octets(text) for name, text in texts.items()}


def _raw_text(value: object) -> str:
    return "ft"[value] if isinstance(value, bool) else value if isinstance(value, str) else json_text(value)


def _octets(text: str) -> bytes:
    """Returns half a surrogate pair as the byte that it stands for, or else as bytes that are not UTF-8 either."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")
