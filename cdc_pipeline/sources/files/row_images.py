"""Looks at the columns of rows with an operation: which rows become changes as they are, and what they do."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.change_files import ChangeFilesSource
from cdc_pipeline.sources.debezium.envelope import LAST_TIME
from cdc_pipeline.sources.debezium.one_line import LineRefused, attempt, is_spelled_alike
from cdc_pipeline.sources.debezium.tables import Layout
from cdc_pipeline.sources.files.dms_octets import Mask, octet_columns, whole_octets
from cdc_pipeline.sources.files.record_values import Column, json_values
from cdc_pipeline.sources.files.row_format import old_names, operation_column, operation_text, own_columns, time_of
from cdc_pipeline.types import is_placeholder, parse_whole_column
from cdc_pipeline.types.debezium import PLACEHOLDER_TEXTS

INSERT, UPDATE, DELETE, OTHER = range(4)
_CODES = {"insert": INSERT, "update": UPDATE, "delete": DELETE}
NO_TIME = -1
_SHOWN = frozenset({int, float, Decimal, bool, type(None)})
"""Types of JSON whose values never stand for one that the source left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowImages:
    """Rows of one table that have the same columns.

    `operations`: INSERT, UPDATE or DELETE. `times`: commit times in microseconds since 1970. `simple`: rows whose
    operation and time are known, and whose change needs nothing but the row itself; what is not simple is decoded line
    by line. `row`: the columns of the table's row, and of others that are in the file and not in the table.
    """

    operations: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    simple: Mask
    row: Mapping[str, Column]


def row_images(
    columns: Mapping[str, Column], rows: int, *, table: TableSettings, source: ChangeFilesSource, written: int
) -> RowImages:
    """`written`: the time of rows without one."""
    declared = table.columns
    named, timed = operation_column(source), source.time_column
    operations = np.zeros(rows, dtype=np.int64) if named is None else _operations(columns.get(named), rows, source)
    times = np.full(rows, written) if timed is None else _times(columns.get(timed), rows, written)
    simple = (operations != OTHER) & (times > 0) & (times < LAST_TIME)
    for name in source.order_by:
        simple &= ~is_null(columns[name]) if name in columns else False
    old = old_names(columns, source.before_prefix, declared)
    own = own_columns(source) - set(declared)
    row = {name: column for name, column in columns.items() if name not in own and name not in old}
    if source.format == "dms":
        for name in row.keys() & {*octet_columns(declared)}:
            row[name], refused = whole_octets(row[name])
            is_spared = bool(table.id) and name not in table.id
            simple &= ~refused | (is_spared & (operations == DELETE))
    else:
        simple &= ~_hides(row.values(), rows)
    return RowImages(operations=operations, times=times, simple=simple, row=row)


def may_move(columns: Mapping[str, Column], layout: Layout, source: ChangeFilesSource, rows: int) -> Mask:
    """Returns the rows whose old id, if the file has it, differs from their id."""
    found = np.zeros(rows, np.bool_)
    for old in old_names(columns, source.before_prefix, layout.names):
        name = old.removeprefix(source.before_prefix)
        if name in layout.key_names:
            found |= _differs(columns[name], columns[old])
    return found


def is_null(column: Column) -> Mask:
    if isinstance(column, list):
        return np.fromiter((value is None for value in column), np.bool_, len(column))
    return np.asarray(column.is_null())


def without_rows(column: Column, rows: Mask) -> Column:
    """Returns the column with NULL in these rows."""
    if isinstance(column, list):
        return [None if out else value for value, out in zip(column, rows.tolist(), strict=True)]
    return pc.if_else(pa.array(rows), pa.scalar(None, column.type), column)


def _operations(column: "Column | None", rows: int, source: ChangeFilesSource) -> npt.NDArray[np.int64]:
    if column is None:
        return np.full(rows, OTHER)
    if isinstance(column, list):
        return np.array([_code(value, source) for value in column], dtype=np.int64)
    values = pc.dictionary_encode(column, null_encoding="encode")
    codes = np.array([_code(value, source) for value in json_values(values.dictionary)], dtype=np.int64)
    return np.asarray(codes[np.asarray(values.indices)])


def _code(value: object, source: ChangeFilesSource) -> int:
    operation = source.operation_of(operation_text(value))
    return OTHER if operation is None else _CODES.get(operation, OTHER)


def _times(column: "Column | None", rows: int, written: int) -> npt.NDArray[np.int64]:
    """Returns the times; NO_TIME for what is none."""
    if column is None:
        return np.full(rows, written)
    if not isinstance(column, list):
        for type_name in ("timestamp", "timestamptz"):
            found = parse_whole_column(column, type_name)
            if found is not None:
                filled = pc.fill_null(found.cast(pa.int64()), written)
                return np.array(filled, dtype=np.int64)
    times = (attempt(partial(time_of, value, "")) for value in json_values(column))
    return np.array(
        [written if time is None else NO_TIME if isinstance(time, LineRefused) else time for time in times],
        dtype=np.int64,
    )


def _hides(columns: Collection[Column], rows: int) -> Mask:
    """Returns the rows with a value that stands for one that the source left out."""
    found = np.zeros(rows, np.bool_)
    for column in columns:
        if isinstance(column, list):
            if not frozenset(map(type, column)) <= _SHOWN:
                found |= np.fromiter(map(is_placeholder, column), np.bool_, rows)
        elif pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            found |= _equal(column, PLACEHOLDER_TEXTS[0].encode())
        elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            for text in PLACEHOLDER_TEXTS:
                found |= _equal(column, text)
    return found


def _equal(column: pa.Array, value: str | bytes) -> Mask | np.bool_:
    equal = pc.equal(column, value)
    return np.asarray(equal.fill_null(fill_value=False)) if pc.any(equal).as_py() else np.False_


def _differs(new: Column, old: Column) -> Mask:
    if isinstance(new, list) or isinstance(old, list) or new.type != old.type:
        pairs = zip(json_values(new), json_values(old), strict=True)
        return np.array([not is_spelled_alike(one, other) for one, other in pairs], np.bool_)
    same = pc.or_(pc.fill_null(pc.equal(new, old), fill_value=False), pc.and_(new.is_null(), old.is_null()))
    return ~np.asarray(same)
