"""Turns change events of one table, as texts of a database, into rows of a slice file and events that do not fit."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.errors import CdcError, TableStale
from cdc_pipeline.record import Operation, TableName, TableSchema
from cdc_pipeline.sources.debezium.one_line import attempt, printable
from cdc_pipeline.sources.event_texts import EventTexts, Misfit, payload, typed_rows, with_numbers
from cdc_pipeline.sources.protocol import Integers, TableEvents, UnfitEvent

_OFFSET_BASIS = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_COLUMN_END = np.uint64(0x1F)


def table_events(
    texts: EventTexts, commit_position: Integers, *, table: TableName, schema: TableSchema, stream_partitions: int
) -> TableEvents:
    """Returns the events in their order. Those that cannot become a row are in `unfit`, whole.

    An event belongs to the stream partition of its id, in a keyless table to that of its version. A truncate has no id
    and belongs to the stream partition 0.
    """
    rows, found = typed_rows(texts, schema)
    truncates = np.asarray(pc.equal(texts.operation, Operation.TRUNCATE.value))
    by_id = stream_partition([texts.texts[name] for name in schema.key] or [texts.version], stream_partitions)
    partitions = np.where(truncates, 0, by_id)
    misfits = [misfit for misfit in found if not truncates[misfit.row]]
    fits = np.ones(len(commit_position), dtype=np.bool_)
    fits[[misfit.row for misfit in misfits]] = False
    return TableEvents(
        table=table,
        schema=schema,
        rows=rows if fits.all() else rows.filter(pa.array(fits)),
        commit_position=commit_position[fits],
        stream_partition=partitions[fits],
        unfit=tuple(_unfit(texts, schema, misfit, partitions, commit_position) for misfit in misfits),
    )


def events_or_stale(typed: Callable[[], TableEvents], table: TableName) -> TableEvents:
    """Returns the events of `typed`. Raises TableStale for any failure, so that the other tables continue."""
    found = attempt(typed)
    if isinstance(found, TableEvents):
        return found
    if isinstance(found.__cause__, CdcError):
        raise found.__cause__
    raise TableStale(
        f"events of {table}: {printable(str(found))}",
        table=str(table),
        expected="events of the columns that the catalogue shows",
    ) from found.__cause__


def stream_partition(id_columns: Sequence[pa.Array], partitions: int) -> npt.NDArray[np.int64]:
    """Returns the stream partition of each id, from 0 to `partitions` - 1."""
    if partitions == 1:
        return np.zeros(len(id_columns[0]), dtype=np.int64)
    return (stable_hash(id_columns) % np.uint64(partitions)).astype(np.int64)


def stable_hash(id_columns: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
    """Returns the 64-bit FNV-1a hash of each id, over the texts of its columns, each followed by one separator byte.

    It is the same on every machine and in every release. The columns are text arrays of equal length; a NULL counts as
    the empty text. All rows are hashed at once, in one pass per byte position of the longest text.
    """
    digest = np.full(len(id_columns[0]), _OFFSET_BASIS)
    for column in id_columns:
        texts = column.cast(pa.large_binary())
        starts, content = _layout(texts)
        lengths = np.diff(starts)
        for position in range(int(lengths.max(initial=0))):
            rows = np.flatnonzero(lengths > position)
            digest[rows] = (digest[rows] ^ content[starts[rows] + position]) * _PRIME
        digest = (digest ^ _COLUMN_END) * _PRIME
    return digest


def _layout(texts: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    present = texts.fill_null(b"")
    _, offsets, content = present.buffers()
    starts = np.frombuffer(offsets, dtype=np.int64)[present.offset : present.offset + len(present) + 1]
    size = content.size if content is not None else 0
    data = np.frombuffer(content, dtype=np.uint8) if size else np.zeros(0, dtype=np.uint8)
    return starts, data.astype(np.uint64)


def _unfit(
    events: EventTexts, schema: TableSchema, misfit: Misfit, partitions: Integers, positions: Integers
) -> UnfitEvent:
    return UnfitEvent(
        stream_partition=int(partitions[misfit.row]),
        version=events.version[misfit.row].as_py(),
        commit_position=int(positions[misfit.row]),
        column=misfit.column,
        reason=misfit.reason,
        payload=with_numbers(payload(events, misfit.row), schema),
    )
