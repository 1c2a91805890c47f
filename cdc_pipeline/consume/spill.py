"""Moves change events out of memory: their rows are written to an unnamed file and mapped when they are read."""

import mmap
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import IO, Self

import numpy as np
import pyarrow as pa

from cdc_pipeline.record import TableName
from cdc_pipeline.slice_file import file_order
from cdc_pipeline.sources.protocol import Integers, TableEvents

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """Events whose rows are the bytes [start, end) of the file."""

    events: TableEvents
    start: int
    end: int


@dataclass(slots=True, kw_only=True)
class HeldEvents:
    """The events of an open slice, in the chunks in which they came. There may be thousands of chunks.

    `rows`: their number. `bytes_in_memory`: of those that are in no file. `has_schemas`: a table's columns changed.
    All three are counted as events come, so that an event costs the same whatever the slice holds already.
    """

    chunks: dict[TableName, list[TableEvents]] = field(default_factory=dict)
    rows: int = 0
    bytes_in_memory: int = 0
    has_schemas: bool = False

    @classmethod
    def of(cls, chunks: Iterable[TableEvents]) -> Self:
        held = cls()
        for chunk in chunks:
            held.add(chunk)
        return held

    def add(self, chunk: TableEvents) -> None:
        """Adds events in stream order. Events without rows are left out."""
        if not chunk.rows.num_rows:
            return
        own = self.chunks.setdefault(chunk.table, [])
        self.has_schemas |= bool(own) and own[-1].schema != chunk.schema
        own.append(chunk)
        self.rows += chunk.rows.num_rows
        self.bytes_in_memory += chunk.rows.nbytes if chunk.release is None else 0


def spilled(held: HeldEvents) -> HeldEvents:
    """Returns the same events with all rows in a file. Each chunk is of one stream partition, sorted as a slice file.

    The file is in the folder for temporary files and has no name. It is deleted when nothing refers to its chunks any
    more, at the latest when the process ends. `release` of a chunk frees the memory of the pages that were read.
    """
    with tempfile.TemporaryFile() as file:
        parts = [_written(file, part) for chunks in held.chunks.values() for part in _parts(chunks)]
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pa.default_memory_pool().release_unused()
    buffer = pa.py_buffer(mapped)
    return HeldEvents.of(_read_back(part, mapped, buffer) for part in parts)


def _parts(chunks: Sequence[TableEvents]) -> Iterator[TableEvents]:
    """Joins neighbouring chunks of one schema and splits them by stream partition, in the order of first appearance."""
    for (_, is_spilled), group in groupby(chunks, key=lambda chunk: (chunk.schema, chunk.release is not None)):
        if is_spilled:
            yield from group
            continue
        whole = _joined(list(group))
        numbers, firsts = np.unique(whole.stream_partition, return_index=True)
        for number in numbers[np.argsort(firsts)]:
            yield _in_file_order(whole, np.flatnonzero(whole.stream_partition == number))


def _joined(chunks: Sequence[TableEvents]) -> TableEvents:
    return replace(
        chunks[0],
        rows=pa.concat_tables([chunk.rows for chunk in chunks]).combine_chunks(),
        commit_position=np.concatenate([chunk.commit_position for chunk in chunks]),
        stream_partition=np.concatenate([chunk.stream_partition for chunk in chunks]),
        unfit=(),
    )


def _in_file_order(whole: TableEvents, indexes: Integers) -> TableEvents:
    rows = whole.rows if len(indexes) == whole.rows.num_rows else whole.rows.take(pa.array(indexes))
    order = file_order(rows, whole.schema)
    return replace(
        whole,
        rows=rows.take(pa.array(order)),
        commit_position=_short(whole.commit_position[indexes][order]),
        stream_partition=_short(whole.stream_partition[indexes]),
    )


def _short(numbers: Integers) -> Integers:
    """Stores one number when all are equal: the rows of a large transaction have one commit position."""
    return np.broadcast_to(numbers[:1], numbers.shape) if (numbers == numbers[0]).all() else numbers


def _written(file: IO[bytes], events: TableEvents) -> _Written:
    if events.release is not None:
        return _Written(events=events, start=0, end=0)
    file.write(bytes(-file.tell() % _ALIGNMENT))
    start = file.tell()
    with pa.ipc.new_stream(file, events.rows.schema) as writer:
        writer.write_table(events.rows)
    without_rows = replace(events, rows=events.rows.schema.empty_table())
    return _Written(events=without_rows, start=start, end=file.tell())


def _read_back(written: _Written, mapped: mmap.mmap, buffer: pa.Buffer) -> TableEvents:
    if written.events.release is not None:
        return written.events
    rows = pa.ipc.open_stream(buffer.slice(written.start, written.end - written.start)).read_all()
    return replace(written.events, rows=rows, release=partial(mapped.madvise, mmap.MADV_DONTNEED))
