"""Decoded row events -> change events: a key change becomes the delete of the old id and the move to the new one."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.record import OLD_ID_PREFIX, TableName, TableSchema
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.partitioning import stream_partition
from cdc_pipeline.sources.pgoutput import RowGroup, TupleColumn
from cdc_pipeline.sources.protocol import Integers, TableEvents, UnfitEvent
from cdc_pipeline.sources.version_text import version_texts
from cdc_pipeline.types import parse_text, resolve

_INSERT, _UPDATE, _DELETE, _MOVE = b"iudm"
_OLD_ROW = b"O"[0]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Halves:
    """Where each change event comes from: its row in the group, and whether it is about the old or the new id."""

    row: Integers
    operation: npt.NDArray[np.uint8]
    of_old: Mask
    moved: Mask


def table_events(group: RowGroup, table: TableName, schema: TableSchema, stream_partitions: int) -> TableEvents:
    """Change events of a group in stream order; `schema` has the group's columns, in its order."""
    place = {column.name: index for index, column in enumerate(group.relation.columns)}
    halves = _split(group, [place[name] for name in schema.key])
    texts = {name: _texts(group, place[name], halves, is_key=name in schema.key) for name in schema.names}
    absent = {name: mask for name in schema.names if (mask := _absent(group, place[name], halves)) is not None}
    key_texts = [texts[name] for name in schema.key]
    versions = version_texts(group.commit_lsn[halves.row], group.ordinal[halves.row])
    columns, unfit = _typed(schema, texts)
    old_id = {OLD_ID_PREFIX + name: _old_id(group, place[name], halves) for name in schema.key}
    for column in schema.key_columns:
        name = OLD_ID_PREFIX + column.name
        columns[name] = parse_text(old_id[name], resolve(column.type)).values
    own = (_operations(halves.operation), versions, _moments(group, halves), pa.array(group.xid[halves.row]))
    fields = event_schema(schema)
    rows = pa.table(
        [*own, _absent_names(absent, len(halves.row)), *(columns[name] for name in fields.names[5:])], fields
    )
    partitions = stream_partition(key_texts, stream_partitions)
    positions = group.commit_lsn[halves.row].astype(np.int64)
    fits = ~np.logical_or.reduce(list(unfit.values())) if unfit else np.ones(len(positions), dtype=np.bool_)
    return TableEvents(
        table=table,
        schema=schema,
        rows=rows if fits.all() else rows.filter(pa.array(fits)),
        commit_position=positions[fits],
        stream_partition=partitions[fits],
        unfit=tuple(_unfit_events(unfit, texts, versions, positions, partitions)),
    )


def _split(group: RowGroup, key: list[int]) -> _Halves:
    """Key-changing updates twice, their delete first."""
    moved = np.zeros(len(group.op), dtype=np.bool_)
    if group.old is not None:
        with_old = (group.op == _UPDATE) & (group.old_kind != 0)
        for column in key:
            same = pc.equal(_string(group.old[column].values), _string(group.new[column].values))
            moved |= with_old & ~np.asarray(pc.fill_null(same, fill_value=True))
    row = np.repeat(np.arange(len(group.op)), 1 + moved)
    first = np.concatenate(([True], np.diff(row) > 0)) if len(row) else np.zeros(0, dtype=np.bool_)
    is_moved = moved[row]
    operation = np.where(is_moved, np.where(first, _DELETE, _MOVE), group.op[row]).astype(np.uint8)
    return _Halves(row=row, operation=operation, of_old=operation == _DELETE, moved=operation == _MOVE)


def _texts(group: RowGroup, column: int, halves: _Halves, *, is_key: bool) -> pa.Array:
    """Text per change event: the old image's for the id of a delete; the new one's, filled up from a whole old row."""
    new = _string(group.new[column].values)
    if group.old is None:
        return new.take(pa.array(halves.row, mask=halves.of_old))
    old = _string(group.old[column].values)
    both = pa.concat_arrays([new, old])
    index = halves.row.copy()
    if is_key:
        index[halves.of_old] += len(new)
        return both.take(pa.array(index))
    known = _known_from_old(group, group.new[column], halves)
    index[known] += len(new)
    return both.take(pa.array(index, mask=halves.of_old))


def _known_from_old(group: RowGroup, column: TupleColumn, halves: _Halves) -> Mask:
    """Values that the new image leaves out but the whole old row holds."""
    if column.absent is None:
        return np.zeros(len(halves.row), dtype=np.bool_)
    known: Mask = column.absent[halves.row] & (group.old_kind[halves.row] == _OLD_ROW)
    return known


def _absent(group: RowGroup, column: int, halves: _Halves) -> Mask | None:
    new = group.new[column]
    if new.absent is None:
        return None
    absent: Mask = new.absent[halves.row] & ~halves.of_old & ~_known_from_old(group, new, halves)
    return absent if absent.any() else None


def _old_id(group: RowGroup, column: int, halves: _Halves) -> pa.Array:
    if group.old is None:
        return pa.nulls(len(halves.row), pa.string())
    return _string(group.old[column].values).take(pa.array(halves.row, mask=~halves.moved))


def _typed(schema: TableSchema, texts: Mapping[str, pa.Array]) -> tuple[dict[str, pa.Array], dict[str, Mask]]:
    columns: dict[str, pa.Array] = {}
    unfit: dict[str, Mask] = {}
    for column in schema.columns:
        parsed = parse_text(texts[column.name], resolve(column.type))
        columns[column.name] = parsed.values
        if parsed.unfit is not None:
            unfit[column.name] = np.asarray(pc.fill_null(parsed.unfit, fill_value=False))
    return columns, unfit


def _absent_names(absent: Mapping[str, Mask], rows: int) -> pa.Array:
    """Names of the absent columns per change event, NULL where there are none."""
    if not absent:
        return pa.nulls(rows, pa.list_(pa.string()))
    names = list(absent)
    row, column = np.nonzero(np.stack([absent[name] for name in names], axis=1))
    counts = np.bincount(row, minlength=rows)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    values = pa.array(names).take(pa.array(column))
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(counts == 0))


def _unfit_events(
    unfit: Mapping[str, Mask],
    texts: Mapping[str, pa.Array],
    versions: pa.Array,
    positions: Integers,
    partitions: Integers,
) -> list[UnfitEvent]:
    """One per change event that has a value outside its type; few, so they may be objects."""
    rows = sorted({int(row) for mask in unfit.values() for row in np.flatnonzero(mask)})
    return [
        UnfitEvent(
            stream_partition=int(partitions[row]),
            version=versions[row].as_py(),
            commit_position=int(positions[row]),
            column=next(name for name, mask in unfit.items() if mask[row]),
            payload={name: column[row].as_py() for name, column in texts.items()},
        )
        for row in rows
    ]


def _operations(codes: npt.NDArray[np.uint8]) -> pa.Array:
    letters = np.ascontiguousarray(codes)
    offsets = pa.py_buffer(np.arange(len(codes) + 1, dtype=np.int32))
    return pa.Array.from_buffers(pa.string(), len(codes), [None, offsets, pa.py_buffer(letters)])


def _moments(group: RowGroup, halves: _Halves) -> pa.Array:
    return pa.array(group.commit_time[halves.row]).cast(pa.timestamp("us", "UTC"))


def _string(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.string())
