"""Cuts a stream into time slices, always between two transactions: by label, size, schema change or marker message."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_pipeline.consume.spill import HeldEvents, spilled
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.slice_file import align
from cdc_pipeline.sources.protocol import EventBatch, Integers, Marker, TableEvents, Transactions, UnfitEvent
from cdc_pipeline.time_slice import EPOCH, Label, interval_from

CUT = "cut"
CUT_AT = "cut-at:"
_ASKED = re.compile(f"{CUT_AT}([0-9a-f]{{16}})(:|$)")
MEMORY_BYTES = 64 << 20
"""The most memory for rows that are not in a slice yet. Above it, all of them are moved into a file."""
UNFIT_CHARACTERS = 8 << 20
"""The most text of quarantined events in one cut. Above it the stream is cut, since a cut file holds all this text."""
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRows:
    """Change events of one table in one stream partition, under one schema.

    `releases`: functions that free the memory of rows that were read from files.
    """

    schema: TableSchema
    rows: pa.Table
    releases: tuple[Callable[[], None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSlices:
    """All time slices of one cut: every transaction of the half-open range [start, end) of positions.

    `last_commit_position` is None when the range holds no transaction. `requested`: a marker message or a change of
    columns asked for a cut at this position, where no transaction need end; it is empty when the stream was cut there
    before. `read_until`: the time up to which the source was read to its end, where only the consumer's own clock shows
    that it is over.
    """

    start: int
    end: int
    label: Label
    commit_time: datetime
    last_commit_position: int | None
    requested: bool
    slices: Mapping[tuple[TableName, int], SliceRows]
    unfit: tuple[tuple[TableName, UnfitEvent], ...]
    read_until: datetime | None = None


class SliceCutter:
    """Holds the events that are not in a slice yet. Takes batches in stream order and returns finished cuts.

    `last_label`: the label of the last registered slice; labels never go back. `commit_time` labels a cut that is made
    before the first transaction is read. `cut_at`: positions between two transactions at which the stream has to be
    cut, because a table has other columns after them.
    """

    def __init__(
        self,
        *,
        start: int,
        commit_time: datetime,
        slice_length: timedelta,
        slice_rows: int,
        last_label: Label | None = None,
        cut_at: Sequence[int] = (),
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._cut_at = cut_at
        self.start = start
        self._commit_time = commit_time
        self.length = slice_length
        self._slice_rows = slice_rows
        self._memory_bytes = memory_bytes
        self._filling: np.int64 | None = None
        self._floor = None if last_label is None else interval_from(last_label, slice_length)
        self._held = HeldEvents()
        self._unfit: list[tuple[TableName, UnfitEvent]] = []
        self._unfit_characters = 0
        self._transactions = _no_transactions()
        self._markers: dict[int, str] = {}
        self._labels = self._labelled()

    @property
    def due(self) -> datetime:
        """The time when the open slice has to be closed; without an open slice, when the next heartbeat is due."""
        return self._label(self._last(self._labels)).end

    def add(self, batch: EventBatch) -> list[CutSlices]:
        """Adds a batch; returns the cuts that it completes, in order of position.

        Transactions before the start are skipped: they are registered already.
        """
        for events in batch.events:
            self._held.add(_select(events, events.commit_position >= self.start))
            fresh = [event for event in events.unfit if event.commit_position >= self.start]
            self._unfit.extend((events.table, event) for event in fresh)
            self._unfit_characters += sum(map(_characters, fresh))
        self._transactions = _joined(self._transactions, _from(batch.transactions, self.start))
        self._markers.update((marker.commit_position, marker.text) for marker in batch.markers)
        self._labels = self._labelled()
        cuts = [self._cut(self.start, requested=True)] if self.start in map(_asked, batch.markers) else []
        while (found := self._next_cut()) is not None:
            cuts.append(self._cut(found[0], requested=found[1]))
        if self._held.bytes_in_memory > self._memory_bytes:
            self._held = spilled(self._held)
        return cuts

    def _next_cut(self) -> tuple[int, bool] | None:
        """Returns the first position at which open events have to be cut, and whether the cut is requested there."""
        own = (*self._label_changes(), *self._schema_changes(), *self._full(), *self._too_much_quarantined())
        positions = dict.fromkeys(own, False) | dict.fromkeys(self._at_column_changes(), True) | self._marked()
        return min(((position, asked) for position, asked in positions.items() if position > self.start), default=None)

    def _labelled(self) -> Integers:
        """Returns the interval number of each open transaction. The numbers never decrease.

        A transaction that only carries a marker message belongs to the open slice, whatever its own time is. Its time
        counts for the transactions after it.
        """
        intervals = self._transactions.commit_time // (self.length // _MICROSECOND)
        only_marker = np.isin(self._transactions.commit_position, list(self._markers))
        before = np.concatenate((intervals[:1] if self._floor is None else [self._floor], intervals[:-1]))
        own = np.where(only_marker, before[: len(intervals)], intervals)
        return np.maximum.accumulate(np.maximum(own, before[: len(intervals)]))

    def _last(self, labels: Integers) -> int:
        if len(labels):
            return int(labels[-1])
        return self._number(self._commit_time) if self._floor is None else self._floor

    def _number(self, time: datetime) -> int:
        return (time - EPOCH) // self.length

    def _label_changes(self) -> list[int]:
        changes = np.flatnonzero(np.diff(self._labels) > 0)
        return [int(position) for position in self._transactions.end_position[changes]]

    def _schema_changes(self) -> list[int]:
        """Returns the end of the last transaction before each change of a table's columns."""
        changed = [
            int(later.commit_position.min())
            for chunks in (self._held.chunks.values() if self._held.has_schemas else ())
            for earlier, later in pairwise(chunks)
            if earlier.schema != later.schema
        ]
        ends = self._transactions.end_position
        return [int(ends[ends <= position][-1]) for position in changed if (ends <= position).any()]

    def _full(self) -> list[int]:
        """Returns the ends of the transactions with which rows, and transactions, of the slice reach its limit."""
        ends = self._transactions.end_position
        full = [int(end) for end in ends[self._slice_rows - 1 : self._slice_rows]]
        if self._held.rows < self._slice_rows:
            return full
        if self._filling is None:
            positions = [chunk.commit_position for chunks in self._held.chunks.values() for chunk in chunks]
            self._filling = np.partition(np.concatenate(positions), self._slice_rows - 1)[self._slice_rows - 1]
        return full + [int(end) for end in ends[self._transactions.commit_position == self._filling]]

    def _too_much_quarantined(self) -> list[int]:
        """Returns the end of the newest quarantined event's transaction, once there is too much text of such events."""
        if self._unfit_characters < UNFIT_CHARACTERS:
            return []
        newest = max(event.commit_position for _, event in self._unfit)
        return [int(end) for end in self._transactions.end_position[self._transactions.commit_position == newest]]

    def _at_column_changes(self) -> list[int]:
        return [position for position in self._cut_at if (self._transactions.end_position > position).any()]

    def _marked(self) -> dict[int, bool]:
        """Returns positions: True for one that a marker message names, False for the end of a plain marker message."""
        cuts: dict[int, bool] = {}
        for commit_position, text in self._markers.items():
            ends = self._transactions.end_position[self._transactions.commit_position == commit_position]
            asked = _asked(Marker(text=text, commit_position=commit_position))
            if asked is not None:
                cuts[asked] = True
            elif len(ends):
                cuts[int(ends[0])] = False
        return cuts

    def _cut(self, position: int, *, requested: bool) -> CutSlices:
        inside = self._transactions.commit_position < position
        label, last = self._last(self._labels[inside]), None
        self._floor = label
        if inside.any():
            last = int(self._transactions.commit_position[inside][-1])
            self._commit_time = EPOCH + int(self._transactions.commit_time[inside][-1]) * _MICROSECOND
            self._floor = max(label, self._number(self._commit_time))
        slices = {
            (name, number): rows
            for name, chunks in self._held.chunks.items()
            for number, rows in _below(chunks, position).items()
        }
        cut = CutSlices(
            start=self.start,
            end=position,
            label=self._label(label),
            commit_time=self._commit_time,
            last_commit_position=last,
            requested=requested,
            slices=slices,
            unfit=tuple(pair for pair in self._unfit if pair[1].commit_position < position),
        )
        self._keep_from(position)
        return cut

    def _keep_from(self, position: int) -> None:
        self.start = position
        self._filling = None
        self._transactions = _from(self._transactions, position)
        self._markers = {at: text for at, text in self._markers.items() if at >= position}
        self._labels = self._labelled()
        self._unfit = [pair for pair in self._unfit if pair[1].commit_position >= position]
        self._unfit_characters = sum(_characters(event) for _, event in self._unfit)
        self._held = HeldEvents.of(
            _select(chunk, chunk.commit_position >= position)
            for chunks in self._held.chunks.values()
            for chunk in chunks
        )

    def _label(self, number: int) -> Label:
        start = EPOCH + number * self.length
        return Label(start=start, end=start + self.length)


def _characters(event: UnfitEvent) -> int:
    return sum(len(text or "") for text in event.payload.values())


def _asked(marker: Marker) -> int | None:
    """Returns the position, up to its own, at which a marker message requests a cut; None for any other."""
    found = _ASKED.match(marker.text)  # anybody may write one, also with a position that is still to come
    return asked if found and (asked := int(found[1], 16)) <= marker.commit_position else None


def _below(chunks: Sequence[TableEvents], position: int) -> dict[int, SliceRows]:
    """Returns one table's rows below `position`, by stream partition, with the columns of the newest row."""
    taken = [_select(chunk, chunk.commit_position < position) for chunk in chunks]
    present = [chunk for chunk in taken if chunk.rows.num_rows]
    if not present:
        return {}
    schema = present[-1].schema
    by_number = dict[int, list[TableEvents]]()
    for chunk in present:  # each is compared with its own numbers only: there may be many chunks and many numbers
        for number in np.unique(chunk.stream_partition):
            by_number.setdefault(int(number), []).append(_select(chunk, chunk.stream_partition == number))
    return {number: _slice_rows(own, schema) for number, own in sorted(by_number.items())}


def _slice_rows(chunks: Sequence[TableEvents], schema: TableSchema) -> SliceRows:
    rows = pa.concat_tables([align(chunk.rows, chunk.schema, schema) for chunk in chunks])
    return SliceRows(schema=schema, rows=rows, releases=tuple(chunk.release for chunk in chunks if chunk.release))


def _select(events: TableEvents, rows: npt.NDArray[np.bool_]) -> TableEvents:
    if rows.all():
        return replace(events, unfit=())
    return TableEvents(
        table=events.table,
        schema=events.schema,
        rows=events.rows.filter(pa.array(rows)),
        commit_position=events.commit_position[rows],
        stream_partition=events.stream_partition[rows],
    )


def _no_transactions() -> Transactions:
    nothing = np.zeros(0, dtype=np.int64)
    return Transactions(commit_position=nothing, end_position=nothing, commit_time=nothing)


def _joined(first: Transactions, second: Transactions) -> Transactions:
    return Transactions(
        commit_position=np.concatenate((first.commit_position, second.commit_position)),
        end_position=np.concatenate((first.end_position, second.end_position)),
        commit_time=np.concatenate((first.commit_time, second.commit_time)),
    )


def _from(transactions: Transactions, position: int) -> Transactions:
    kept: Integers = np.flatnonzero(transactions.commit_position >= position)
    return Transactions(
        commit_position=transactions.commit_position[kept],
        end_position=transactions.end_position[kept],
        commit_time=transactions.commit_time[kept],
    )
