"""Change events of one table -> the immutable Parquet bytes of a slice file, and what the metadata store has of it."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_pipeline.record import (
    ABSENT,
    COMMIT_TIME,
    OLD_ID_PREFIX,
    OPERATION,
    TRANSACTION,
    VERSION,
    Column,
    Operation,
    TableSchema,
)
from cdc_pipeline.types import parse_text, resolve
from cdc_pipeline.types.row_order import ascending

Integers = npt.NDArray[np.int64]
MOST_KEY_RANGES = 8
_LONGEST_BOUND = 1_000
ROW_GROUP_ROWS = 128_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFile:
    """Content of one slice file and its figures.

    `key_ranges`: inclusive ranges of values of the first id column; every id of the file is in one of them.
    `truncated_at`: version of the last TRUNCATE in the file.
    """

    content: bytes
    sha256: str
    rows: int
    key_changes: int
    partial_rows: int
    truncates: int
    key_ranges: tuple[tuple[Any, Any], ...]
    truncated_at: str | None
    oldest_version: str | None


def event_schema(schema: TableSchema) -> pa.Schema:
    """Columns of a slice file: the pipeline's own, the old id of a key change, then those of the source."""
    own = [
        pa.field(OPERATION, pa.string(), nullable=False),
        pa.field(VERSION, pa.string(), nullable=False),
        pa.field(COMMIT_TIME, pa.timestamp("us", "UTC"), nullable=False),
        pa.field(TRANSACTION, pa.int64()),
        pa.field(ABSENT, pa.list_(pa.string())),
    ]
    old_id = [pa.field(OLD_ID_PREFIX + column.name, resolve(column.type).arrow) for column in schema.key_columns]
    source = [pa.field(column.name, resolve(column.type).arrow) for column in schema.columns]
    return pa.schema([*own, *old_id, *source])


def file_order(rows: pa.Table, schema: TableSchema) -> Integers:
    """Row numbers sorted by id, then version; for a keyless table by version."""
    names = (*schema.key, VERSION)
    chosen = rows.select(names)
    order: Integers = np.asarray(pc.sort_indices(chosen, sort_keys=ascending(chosen, names)))
    return order.view(np.int64)


def write_slice_file(rows: pa.Table, schema: TableSchema, releases: Sequence[Callable[[], None]] = ()) -> SliceFile:
    """Sorts by id, then version, and writes Parquet: zstd level 1, with page checksums and statistics.

    `releases`: the rows are memory-mapped files, and each of these calls drops their pages from memory. They are called
    before each row group, so that memory holds one row group at a time.
    """
    rows = rows if releases else rows.combine_chunks()
    ranges = () if schema.is_keyless else key_ranges(rows[schema.key[0]])
    known = SliceFile(
        content=b"",
        sha256="",
        rows=rows.num_rows,
        key_changes=_count(rows[OPERATION], Operation.MOVE),
        partial_rows=rows.num_rows - rows[ABSENT].null_count,
        truncates=_count(rows[OPERATION], Operation.TRUNCATE),
        key_ranges=ranges,
        truncated_at=_last_truncate(rows),
        oldest_version=pc.min(rows[VERSION]).as_py(),
    )
    content = _content(rows, schema, releases)
    return replace(known, content=content, sha256=hashlib.sha256(content).hexdigest())


def _content(rows: pa.Table, schema: TableSchema, releases: Sequence[Callable[[], None]]) -> bytes:
    fields = event_schema(schema)
    _release(releases)
    batches, places = rows.to_batches(), file_order(rows, schema)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        fields,
        compression="zstd",
        compression_level=1,
        write_page_checksum=True,
        use_dictionary=[OPERATION, f"{ABSENT}.list.element", *_texts(fields)],
        store_schema=False,
    ) as writer:
        for start in range(0, len(places), ROW_GROUP_ROWS):
            _release(releases)
            writer.write_table(_taken(batches, fields, places[start : start + ROW_GROUP_ROWS]), ROW_GROUP_ROWS)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _release(releases: Sequence[Callable[[], None]]) -> None:
    for release in releases:
        release()


def _taken(batches: Sequence[pa.RecordBatch], fields: pa.Schema, places: Integers) -> pa.Table:
    """The rows with these numbers, in this order. Taken batch by batch: `take` across batches copies all of them."""
    if len(batches) == 1 and (np.diff(places) == 1).all():
        return pa.Table.from_batches([batches[0].slice(places[0], len(places))], fields)
    if len(batches) == 1:
        return pa.Table.from_batches([batches[0].take(pa.array(places))], fields)
    ends = np.cumsum([batch.num_rows for batch in batches])
    owners = np.searchsorted(ends, places, side="right")
    parts, found = [], []
    for owner in np.unique(owners):
        own = np.flatnonzero(owners == owner)
        parts.append(batches[owner].take(pa.array(places[own] - ends[owner] + batches[owner].num_rows)))
        found.append(own)
    back = np.argsort(np.concatenate(found))
    return pa.Table.from_batches(parts, fields).combine_chunks().take(pa.array(back))


def key_ranges(ids: pa.ChunkedArray) -> tuple[tuple[Any, Any], ...]:
    """At most MOST_KEY_RANGES inclusive ranges, split at the widest gaps. Empty for a type without a usable order.

    Texts give one range, because the distance between two texts has no meaning.
    """
    present = ids.drop_null() if ids.null_count else ids
    if len(present) == 0:
        return ()
    if pa.types.is_string(present.type):
        ends = pc.min_max(present).as_py()
        low, high = ends["min"], ends["max"]
        return ((low, high),) if all(map(_is_storable, (low, high))) else ()
    numbers = _whole_numbers(present)
    if numbers is None:
        return ()
    values = np.array(numbers.to_numpy(), dtype=np.int64)
    values.sort()
    cuts = _widest(np.diff(values))
    lows = values[np.concatenate(([0], cuts + 1))]
    highs = values[np.concatenate((cuts, [len(values) - 1]))]
    return tuple(zip(lows.tolist(), highs.tolist(), strict=True))


def _whole_numbers(ids: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """The ids as integers. None for a type of other values, and if a DECIMAL is too large for 64 bits."""
    if pa.types.is_decimal(ids.type) and ids.type.scale == 0:
        try:
            return ids.cast(pa.int64())
        except pa.ArrowInvalid:
            return None
    return ids if pa.types.is_integer(ids.type) else None


def _is_storable(text: str) -> bool:
    """Whether the metadata store takes the text: it refuses NUL, and a long text is too much for each slice's row."""
    return len(text) <= _LONGEST_BOUND and "\0" not in text


def _widest(gaps: Integers) -> Integers:
    """Indexes of the widest gaps in rising order; at most one less than MOST_KEY_RANGES."""
    most = min(MOST_KEY_RANGES - 1, len(gaps))
    if not most:
        return gaps
    least = max(2, int(np.partition(gaps, -most)[-most]))
    wider = np.flatnonzero(gaps > least)
    as_wide = np.flatnonzero(gaps == least)
    return np.sort(np.concatenate((wider, as_wide[: most - len(wider)])))


def _count(operations: pa.ChunkedArray, operation: Operation) -> int:
    total = pc.sum(pc.equal(operations, operation.value)).as_py()
    return int(total or 0)


def _last_truncate(rows: pa.Table) -> str | None:
    truncates = rows[VERSION].filter(pc.equal(rows[OPERATION], Operation.TRUNCATE.value))
    version: str | None = pc.max(truncates).as_py()
    return version


def _texts(fields: pa.Schema) -> list[str]:
    return [field.name for field in fields if pa.types.is_string(field.type) and field.name != VERSION]


def align(rows: pa.Table, schema: TableSchema, wanted: TableSchema) -> pa.Table:
    """Converts rows from `schema` to the later schema `wanted`, after the table's columns changed in a transaction.

    Columns correspond by number where the source numbers them, otherwise by name. An added column gets the value that
    the source shows for older rows; without numbers that is unknown, and it is NULL in an insert and absent in an
    update. A dropped column is left out.
    """
    if schema == wanted:
        return rows
    before = _names_before(schema, wanted)
    added = [column for column in wanted.columns if column.name not in before]
    unknown = [column.name for column in added if column.number is None]
    updates = pc.is_in(rows[OPERATION], pa.array([Operation.UPDATE.value, Operation.MOVE.value]))
    now = {old: new for new, old in before.items()}
    absent = [
        [*(now[name] for name in present or () if name in now), *(unknown if update else ())] or None
        for present, update in zip(rows[ABSENT].to_pylist(), updates.to_pylist(), strict=True)
    ]
    filled = {column.name: _missing(column, rows.num_rows) for column in added}
    filled[ABSENT] = pa.array(absent, type=pa.list_(pa.string()))
    target = event_schema(wanted)
    columns = [
        filled[field.name] if field.name in filled else rows[before.get(field.name, field.name)].cast(field.type)
        for field in target
    ]
    return pa.table(columns, schema=target)


def _names_before(schema: TableSchema, wanted: TableSchema) -> dict[str, str]:
    """Name in `wanted` -> name in `schema`, for the columns in both."""
    if all(column.number is not None for column in (*schema.columns, *wanted.columns)):
        names = {column.number: column.name for column in schema.columns}
        return {column.name: names[column.number] for column in wanted.columns if column.number in names}
    return {name: name for name in wanted.names if name in schema.names}


def _missing(column: Column, rows: int) -> pa.Array:
    """The values of an added column in older rows."""
    column_type = resolve(column.type)
    if column.missing is None:
        return pa.nulls(rows, column_type.arrow)
    return pa.repeat(parse_text(pa.array([column.missing]), column_type).values[0], rows)
