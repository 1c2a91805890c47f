"""stream_to_slices: change events of the source -> registered slice files; only then the source is told."""

import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Event

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from cdc_pipeline.areas import slice_key
from cdc_pipeline.consume.cut_chain import CutChain
from cdc_pipeline.consume.slice_cutter import CUT, CutSlices, SliceCutter, SliceRows
from cdc_pipeline.metadata_store.cut import Cut, NewSlice, PartitionRange, QuarantinedEvent
from cdc_pipeline.metadata_store.rows import Assignment
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import OPERATION, Operation, TableName, TableSchema, encode_position
from cdc_pipeline.slice_file import event_schema, write_slice_file
from cdc_pipeline.sources.protocol import ChangeStream, EventBatch, TableEvents, UnfitEvent
from cdc_pipeline.steps import OnStep, step
from cdc_pipeline.time_slice import SliceFileName

log = structlog.get_logger()

_GRACE = timedelta(milliseconds=200)
_SHORTEST_WAIT = timedelta(milliseconds=50)
_LONGEST_WAIT = timedelta(seconds=1)


class Consumer:
    """Owner of all stream partitions of one stream, under one assignment epoch."""

    def __init__(
        self,
        *,
        assignment: Assignment,
        stream: ChangeStream,
        cutter: SliceCutter,
        table_ids: Mapping[TableName, int],
        object_store: ObjectStore,
        store: MetadataStore,
        chain: CutChain,
        clock: Callable[[], datetime],
        on_step: OnStep,
        ignored_truncates: Collection[TableName] = (),
        check_tables: Callable[[], None] = lambda: None,
        changing: Mapping[TableName, TableSchema] | None = None,
    ) -> None:
        """`changing`: tables whose columns changed, with those that every event from their generation on has."""
        self._assignment = assignment
        self._place = assignment.place
        self._stream = stream
        self._cutter = cutter
        self._start = cutter.start
        self._table_ids = table_ids
        self._schema_ids: dict[tuple[int, TableSchema], str] = {}
        self._schemas: dict[str, TableSchema] = {}
        self._objects = object_store
        self._store = store
        self._chain = chain
        self._clock = clock
        self._on_step = on_step
        self._next_mark = self._last_cut = time.monotonic()
        self._marked: dict[str, int] = {}
        self._offsets = dict(assignment.next_offset)
        self._ignored_truncates = ignored_truncates
        self._check_tables = check_tables
        self._changing = dict(changing or {})

    def run(self, stop: Event, beat: Callable[[], None] = lambda: None) -> None:
        """Until `stop` is set; what is open then is read again by the next owner. `beat` is called in every round."""
        while not stop.is_set():
            beat()
            self._advance(stop_at=None)

    def run_until_idle(self) -> int:
        """Registers everything that the source held when this was called; returns the position behind it."""
        mark = f"{CUT}:{uuid.uuid4()}"
        self._send_mark(mark)
        end = None
        while end is None:
            end = self._advance(stop_at=mark)
        return end

    def _advance(self, *, stop_at: str | None) -> int | None:
        """One read and what follows from it; the end of the cut behind the mark `stop_at`, once it is registered."""
        batch = self._stream.read(self._wait())
        ends = []
        if batch is not None:
            self._marked.update((mark.text, mark.commit_position) for mark in batch.marks if mark.text == stop_at)
            for cut in self._cutter.add(self._without_ignored(batch)):
                self._register(cut)
                self._last_cut = time.monotonic()
                ends.append(cut.end)
        self._give_sign_of_life()
        place = self._marked.get(stop_at or "")
        return next((end for end in ends if place is not None and end > place), None)

    def _wait(self) -> timedelta:
        return min(max(self._until_sign_of_life(), _SHORTEST_WAIT), _LONGEST_WAIT)

    def _give_sign_of_life(self) -> None:
        """A mark closes the slice that is due: on an idle stream nothing else would."""
        if self._until_sign_of_life() <= timedelta(0):
            self._send_mark(CUT, is_sign_of_life=True)
            self._next_mark = time.monotonic() + _LONGEST_WAIT.total_seconds()

    def _until_sign_of_life(self) -> timedelta:
        """A slice's length after the last cut at the latest: this machine's clock may be hours behind the source's."""
        now = time.monotonic()
        by_clock = self._cutter.due - self._clock()
        since_cut = self._cutter.length - timedelta(seconds=now - self._last_cut)
        return max(min(by_clock, since_cut) + _GRACE, timedelta(seconds=self._next_mark - now))

    def _send_mark(self, text: str, *, is_sign_of_life: bool = False) -> None:
        with step(self._on_step, "source.mark"):
            self._stream.send_mark(text, is_sign_of_life=is_sign_of_life)

    def _without_ignored(self, batch: EventBatch) -> EventBatch:
        events = tuple(
            _without_truncates(found) if found.table in self._ignored_truncates else found for found in batch.events
        )
        return replace(batch, events=events)

    def _register(self, cut: CutSlices) -> None:
        """Durable on return. A cut with nothing in any stream partition is none, unless somebody asked for it.

        Raises StreamMoved when another consumer's cut was decided here.
        """
        partitions = self._ranges(cut)
        moved = {part.stream_partition: part for part in partitions if not part.is_empty}
        if not moved and not cut.requested:
            return
        self._check_tables()
        cut = self._with_changes(cut)
        slices = tuple(
            self._write(cut, name, moved[number], cut.slices[name, number])
            for name, number in sorted(cut.slices)
            if name in self._table_ids
        )
        boundary = self._chain.register(self._cut(cut, partitions, slices), self._place, self._schemas)
        self._place, self._start = boundary.place, cut.end
        self._offsets = {part.stream_partition: part.end_offset for part in partitions}
        if cut.last_commit_position is not None:
            with step(self._on_step, "slot.confirm"):
                self._stream.confirm(cut.last_commit_position)
        self._end_changes(cut)
        rows = sum(new.rows for new in slices)
        log.info(
            "cut registered",
            boundary=boundary.boundary_id,
            label=str(cut.label),
            rows=rows,
            position=boundary.position,
        )

    def _with_changes(self, cut: CutSlices) -> CutSlices:
        """A change of columns that no event has shown by its place in the log has a slice of its own, without rows."""
        shown = {name for name, _ in cut.slices}
        first = min(self._offsets)
        silent = {
            (name, first): SliceRows(schema=schema, rows=event_schema(schema).empty_table())
            for name, schema in self._changing.items()
            if cut.start >= schema.generation and name not in shown
        }
        return replace(cut, slices={**cut.slices, **silent})

    def _end_changes(self, cut: CutSlices) -> None:
        """No event of the columns before can come any more."""
        for name, schema in list(self._changing.items()):
            if cut.start >= schema.generation:
                self._store.tables.end_change(self._table_ids[name], schema.generation)
                del self._changing[name]
                log.info("change of columns followed", table=str(name), columns=", ".join(schema.names))

    def _cut(self, cut: CutSlices, partitions: tuple[PartitionRange, ...], slices: tuple[NewSlice, ...]) -> Cut:
        return Cut(
            stream=self._assignment.stream,
            owner=self._assignment.owner,
            epoch=self._assignment.epoch,
            # Where the last registered cut ended: one that was none may lie between.
            start=encode_position(self._start),
            position=encode_position(cut.end),
            commit_time=cut.commit_time,
            label=cut.label,
            requested=cut.requested,
            partitions=partitions,
            tables=tuple(sorted(self._table_ids.values())),
            slices=slices,
            quarantined=tuple(self._quarantined(name, event) for name, event in cut.unfit),
        )

    def _ranges(self, cut: CutSlices) -> tuple[PartitionRange, ...]:
        places = self._stream.places_at(cut.end)
        return tuple(
            PartitionRange(
                stream_partition=number,
                start_offset=start,
                end_offset=places[number].offset,
                last_position=places[number].last_position,
                begun=places[number].begun,
            )
            for number, start in self._offsets.items()
        )

    def _quarantined(self, name: TableName, event: UnfitEvent) -> QuarantinedEvent:
        return QuarantinedEvent(
            table_id=self._table_ids[name],
            stream_partition=event.stream_partition,
            version=event.version,
            column=event.column,
            reason=event.reason,
            payload=dict(event.payload),
        )

    def _write(self, cut: CutSlices, name: TableName, part: PartitionRange, rows: SliceRows) -> NewSlice:
        table_id, number = self._table_ids[name], part.stream_partition
        file = write_slice_file(rows.rows, rows.schema, rows.releases)
        file_name = SliceFileName(
            label=cut.label,
            start_offset=part.start_offset,
            end_offset=part.end_offset,
            sha256=file.sha256,
        )
        key = slice_key(name, number, str(file_name))
        with step(self._on_step, "slice_file.put"):
            self._objects.put_if_absent(key, file.content)
        schema_id = self._schema_id(table_id, rows.schema, part)
        return NewSlice.of(file, table_id=table_id, stream_partition=number, path=key, schema_id=schema_id)

    def _schema_id(self, table_id: int, schema: TableSchema, part: PartitionRange) -> str:
        known = self._schema_ids.get((table_id, schema))
        if known is None:
            known = self._store.tables.record_schema(table_id, schema, first_offset=part.start_offset, is_newest=False)
            self._schema_ids[table_id, schema] = known
            self._schemas[known] = schema
        return known


def _without_truncates(events: TableEvents) -> TableEvents:
    """For a table whose truncates are to do nothing in the lake."""
    kept = np.asarray(pc.not_equal(events.rows[OPERATION], Operation.TRUNCATE.value))
    if kept.all():
        return events
    log.warning("truncate ignored, as pipeline.yml says", table=str(events.table), truncates=int((~kept).sum()))
    return replace(
        events,
        rows=events.rows.filter(pa.array(kept)),
        commit_position=events.commit_position[kept],
        stream_partition=events.stream_partition[kept],
    )
