"""Turns decoded row events into change events. A key change becomes a delete of the old id and a move to the new."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.errors import TableStale
from cdc_pipeline.record import COMMIT_TIME, OPERATION, TRANSACTION, VERSION, Operation, TableName, TableSchema
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.event_texts import EventTexts
from cdc_pipeline.sources.pgoutput.messages import Truncate
from cdc_pipeline.sources.pgoutput.rows import RowGroup
from cdc_pipeline.sources.pgoutput.tuples import TupleColumn
from cdc_pipeline.sources.protocol import Integers, TableEvents
from cdc_pipeline.sources.table_events import table_events
from cdc_pipeline.sources.version_text import version_texts

_INSERT, _UPDATE, _DELETE, _MOVE = b"iudm"
_OLD_ROW, _OLD_KEY = b"OK"
_FLOATS = frozenset({"float4", "float8"})
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Halves:
    """The origin of each change event, one entry per event.

    `row`: its row in the group. `of_old`: it has the values of the old row. `moved`: it is a move to a new id.
    """

    row: Integers
    operation: npt.NDArray[np.uint8]
    of_old: Mask
    moved: Mask


def group_events(group: RowGroup, table: TableName, schema: TableSchema, stream_partitions: int) -> TableEvents:
    """Returns the change events of a group in stream order. `schema` has columns of the group, which may have more.

    In a keyless table, an update becomes the delete of the whole old row and the insert of the whole new row. Raises
    TableStale for events without their id, or without the whole old row of a keyless table.
    """
    place = {column.name: index for index, column in enumerate(group.relation.columns)}
    if schema.is_keyless:
        _check_whole_old_rows(group, table)
    else:
        _check_identity(group, table, schema)
    halves = _split(group, {place[column.name]: column.type for column in schema.columns if column.name in schema.key})
    of_identity = schema.names if schema.is_keyless else schema.key
    events = EventTexts(
        operation=_operations(halves.operation),
        version=version_texts(group.commit_lsn[halves.row], group.ordinal[halves.row]),
        commit_time=_moments(group, halves),
        transaction=pa.array(group.xid[halves.row]),
        absent=_absent_names({name: _absent(group, place[name], halves) for name in schema.names}, len(halves.row)),
        old_id={name: _old_id(group, place[name], halves) for name in schema.key},
        texts={name: _texts(group, place[name], halves, of_identity=name in of_identity) for name in schema.names},
    )
    positions = group.commit_lsn[halves.row].astype(np.int64)
    return table_events(events, positions, table=table, schema=schema, stream_partitions=stream_partitions)


def _check_whole_old_rows(group: RowGroup, table: TableName) -> None:
    if ((group.op != _INSERT) & (group.old_kind != _OLD_ROW)).any():
        raise TableStale(
            f"an update or delete of {table}, which has no key, came without the whole old row",
            table=str(table),
            expected="REPLICA IDENTITY FULL for as long as the table has no key",
            remedy=f"run ALTER TABLE {table.sql} REPLICA IDENTITY FULL, then cdc snapshot {table}",
        )


def _check_identity(group: RowGroup, table: TableName, schema: TableSchema) -> None:
    """Raises TableStale for events without their id. Updates and deletes carry only the replica identity's columns."""
    identity = {column.name for column in group.relation.columns if column.is_key}
    known = {column.name for column in group.relation.columns}
    missing = [name for name in schema.key if name not in (identity if (group.op != _INSERT).any() else known)]
    missing = missing or _hidden_by_partitions(group, schema)
    if missing:
        raise TableStale(
            f"changes of {table} came without {', '.join(missing)}",
            table=str(table),
            expected="an id within the table's replica identity",
            remedy=f"run ALTER TABLE {table.sql} REPLICA IDENTITY FULL, or USING a unique index"
            f" on the id, then cdc snapshot {table}",
        )


def _hidden_by_partitions(group: RowGroup, schema: TableSchema) -> list[str]:
    """Returns columns of the id that an old key lacks: its partition has another replica identity than the table.

    No column of a replica identity is ever NULL, so NULL shows that the server did not send the value.
    """
    if group.old is None:
        return []
    keys = pa.array(group.old_kind == _OLD_KEY)
    place = {column.name: index for index, column in enumerate(group.relation.columns)}
    return [name for name in schema.key if pc.any(pc.and_(keys, group.old[place[name]].values.is_null())).as_py()]


def _split(group: RowGroup, key: Mapping[int, str]) -> _Halves:
    """Splits each update that changes the key into two events, the delete first; in a keyless table, every update.

    `key`: the types of its columns, by their places in the group.
    """
    updates = group.op == _UPDATE
    moved = updates if not key else np.zeros(len(group.op), dtype=np.bool_)
    if group.old is not None:
        for column, type_name in key.items():
            changed = _changed(group.old[column], group.new[column], of_float=type_name in _FLOATS)
            moved = moved | (updates & (group.old_kind != 0) & changed)
    row = np.repeat(np.arange(len(group.op)), 1 + moved)
    first = np.concatenate(([True], np.diff(row) > 0)) if len(row) else np.zeros(0, dtype=np.bool_)
    second = _MOVE if key else _INSERT
    operation = np.where(moved[row], np.where(first, _DELETE, second), group.op[row]).astype(np.uint8)
    return _Halves(row=row, operation=operation, of_old=operation == _DELETE, moved=operation == _MOVE)


def _changed(old: TupleColumn, new: TupleColumn, *, of_float: bool) -> Mask:
    """Returns where an id column had a value and the new row has another value or NULL. -0 and 0 are one number."""
    before, after = (_string(column.values) for column in (old, new))
    if of_float:
        before, after = (pc.if_else(pc.equal(texts, "-0"), "0", texts) for texts in (before, after))
    emptied = pc.and_(before.is_valid(), after.is_null())
    changed: Mask = np.asarray(pc.or_(pc.fill_null(pc.not_equal(before, after), fill_value=False), emptied))
    return changed if new.absent is None else changed & ~new.absent


def _texts(group: RowGroup, column: int, halves: _Halves, *, of_identity: bool) -> pa.Array:
    """Returns a column's text per change event.

    A delete has the old row's value in the columns of its identity, else NULL. Other events have the new row's value,
    or the old row's value where the new row leaves it out. A column of new values alone stays as the decoder made it.
    """
    from_old = halves.of_old | _known_from_old(group, column, halves)
    if group.old is None or not from_old.any():
        return group.new[column].values
    new = _string(group.new[column].values)
    both = pa.concat_arrays([new, _string(group.old[column].values)])
    index = halves.row.copy()
    index[from_old] += len(new)
    return both.take(pa.array(index) if of_identity else pa.array(index, mask=halves.of_old))


def _known_from_old(group: RowGroup, column: int, halves: _Halves) -> Mask:
    """Returns where the new row leaves a value out and the old row has it.

    Only a value that is not NULL is ever left out, so a NULL in the old row shows that the server did not send it.
    """
    absent = group.new[column].absent
    if absent is None or group.old is None:
        return np.zeros(len(halves.row), dtype=np.bool_)
    known: Mask = (absent & np.asarray(group.old[column].values.is_valid()))[halves.row]
    return known


def _absent(group: RowGroup, column: int, halves: _Halves) -> Mask | None:
    new = group.new[column]
    if new.absent is None:
        return None
    absent: Mask = new.absent[halves.row] & ~halves.of_old & ~_known_from_old(group, column, halves)
    return absent if absent.any() else None


def _old_id(group: RowGroup, column: int, halves: _Halves) -> pa.Array:
    if group.old is None:
        return pa.nulls(len(halves.row), pa.string())
    return _string(group.old[column].values).take(pa.array(halves.row, mask=~halves.moved))


def _absent_names(masks: Mapping[str, Mask | None], rows: int) -> pa.Array:
    """Returns the names of the absent columns per change event, NULL if it has none."""
    absent = {name: mask for name, mask in masks.items() if mask is not None}
    if not absent:
        return pa.nulls(rows, pa.list_(pa.string()))
    names = list(absent)
    row, column = np.nonzero(np.stack([absent[name] for name in names], axis=1))
    counts = np.bincount(row, minlength=rows)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    values = pa.array(names).take(pa.array(column))
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(counts == 0))


def _operations(codes: npt.NDArray[np.uint8]) -> pa.Array:
    letters = np.ascontiguousarray(codes)
    offsets = pa.py_buffer(np.arange(len(codes) + 1, dtype=np.int32))
    return pa.Array.from_buffers(pa.string(), len(codes), [None, offsets, pa.py_buffer(letters)])


def _moments(group: RowGroup, halves: _Halves) -> pa.Array:
    return pa.array(group.commit_time[halves.row]).cast(pa.timestamp("us", "UTC"))


def _string(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.string())


def truncate_event(table: TableName, schema: TableSchema, truncate: Truncate) -> TableEvents:
    """Returns the event of a truncate: a single row without id, in stream partition 0."""
    position = np.array([truncate.commit_lsn], dtype=np.int64)
    values = {
        OPERATION: pa.array([Operation.TRUNCATE.value]),
        VERSION: version_texts(position, np.array([truncate.ordinal], dtype=np.int64)),
        COMMIT_TIME: pa.array([truncate.commit_time]).cast(pa.timestamp("us", "UTC")),
        TRANSACTION: pa.array([truncate.xid], pa.int64()),
    }
    fields = event_schema(schema)
    rows = pa.table([values.get(field.name, pa.nulls(1, field.type)) for field in fields], fields)
    nothing = np.zeros(1, dtype=np.int64)
    return TableEvents(table=table, schema=schema, rows=rows, commit_position=position, stream_partition=nothing)
