"""The consumer owns a stream while it reads it. It has one method for each step of `stream_to_slices`."""

import gc
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

import structlog

from cdc_pipeline.areas import slice_key
from cdc_pipeline.consume.cut_chain import CutChain
from cdc_pipeline.consume.event_filter import EventFilter
from cdc_pipeline.consume.heartbeat_timer import HeartbeatTimer
from cdc_pipeline.consume.slice_cutter import CUT, CutSlices, SliceCutter, SliceRows
from cdc_pipeline.metadata_store.ledger.cut import Cut, PartitionRange, QuarantinedEvent, Slice
from cdc_pipeline.metadata_store.ledger.records import Assignment
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName, TableSchema, encode_position
from cdc_pipeline.slice_file import event_schema, write_slice_file
from cdc_pipeline.sources.protocol import ChangeStream, UnfitEvent
from cdc_pipeline.steps import OnStep, step
from cdc_pipeline.time_slice import SliceFileName

log = structlog.get_logger()

_NOT_READ_YET = 1 << 64
"""Greater than every position of a log."""


class Consumer:
    """Owns all stream partitions of one stream, under one assignment epoch. Not thread-safe.

    `position`: the end of the last cut, whether or not that cut had to be registered.
    """

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
        event_filter: EventFilter,
        check_tables: Callable[[], None] = lambda: None,
        changing: Mapping[TableName, TableSchema] | None = None,
    ) -> None:
        """`check_tables` raises if a table is no longer published as it was when the stream was opened.
        `changing`: the new schema of each table whose columns changed; events have it from its `generation` on.
        """
        self._assignment = assignment
        self._chain_position = assignment.chain_position
        self._stream = stream
        self._cutter = cutter
        self._table_ids = table_ids
        self._schema_ids, self._schemas = dict[tuple[int, TableSchema], str](), dict[str, TableSchema]()
        self._objects = object_store
        self._store = store
        self._chain = chain
        self._clock = clock
        self._on_step = on_step
        self._heartbeats = HeartbeatTimer(cutter=cutter, clock=clock)
        self._sent_at, self._marker_positions = dict[str, datetime](), dict[str, int]()
        self._offsets = dict(assignment.next_offset)
        self._filter = event_filter
        self.check_tables = check_tables
        self._changing = dict(changing or {})
        self.position = self._registered_end = cutter.start

    def read_cuts(self) -> Iterator[CutSlices]:
        """Reads the stream once and yields each cut that is complete, in order. Waits at most a second for events."""
        with _no_collection():
            batch = self._stream.read(self._heartbeats.wait)
        if batch is None:
            return
        self._marker_positions.update(
            (marker.text, marker.commit_position) for marker in batch.markers if marker.text in self._marker_positions
        )
        ends = {each.commit_position + 1: self._sent_at.pop(each.text) for each in batch.markers if each.is_end}
        cuts = self._cutter.add(self._filter.kept(batch))
        self._heartbeats.note_read(batch)
        for cut in cuts:
            yield replace(self._with_silent_changes(cut), read_until=ends.get(cut.end))
            self._heartbeats.note_cut()
            self.position = cut.end

    def offset_ranges(self, cut: CutSlices) -> tuple[PartitionRange, ...]:
        """Returns each stream partition's range from its registered offset to the cut's end. Call it once per cut."""
        progress = self._stream.progress_at(cut.end)
        return tuple(
            PartitionRange(
                stream_partition=number,
                start_offset=start,
                end_offset=progress[number].offset,
                last_position=progress[number].last_position,
                begun=progress[number].begun,
            )
            for number, start in self._offsets.items()
        )

    def is_to_be_registered(self, cut: CutSlices, ranges: Sequence[PartitionRange]) -> bool:
        """Returns False for a cut without any progress: no offset, no request, and no later time of an idle source.

        Nothing is known of a source's time while all stream partitions rest.
        """
        is_later = cut.read_until is not None and bool(ranges)
        return cut.requested or is_later or any(not part.is_empty for part in ranges)

    def write_slice_files(self, cut: CutSlices, ranges: Sequence[PartitionRange]) -> tuple[Slice, ...]:
        """Writes one slice file per table and stream partition with events; the files are durable on return."""
        parts = {part.stream_partition: part for part in ranges if not part.is_empty}
        return tuple(
            self._write(cut, name, parts[number], cut.slices[name, number])
            for name, number in sorted(cut.slices)
            if name in self._table_ids
        )

    def decide_and_register(
        self, cut: CutSlices, ranges: tuple[PartitionRange, ...], slices: tuple[Slice, ...]
    ) -> None:
        """Puts the cut file, then registers the cut in one transaction. Both are durable on return.

        Raises StreamMoved when a cut file at this chain position names one of this consumer's stream partitions; a cut
        of others only is registered first. Also for an event below the tombstone horizon of its table; then nothing is
        decided. Raises StaleEpoch when another consumer took the stream.
        """
        boundary = self._chain.register(
            self._cut(cut, ranges, slices), self._assignment, self._chain_position, self._schemas
        )
        self._chain_position, self._registered_end = boundary.chain_position, cut.end
        self._offsets = {part.stream_partition: part.end_offset for part in ranges}
        log.info(
            "cut registered",
            boundary=boundary.boundary_id,
            label=str(cut.label),
            rows=sum(new.rows for new in slices),
            position=boundary.position,
        )

    def confirm(self, cut: CutSlices) -> None:
        """Confirms the cut to the source, which may then delete its log before the last registered transaction."""
        if cut.last_commit_position is not None:
            with step(self._on_step, "slot.confirm"):
                self._stream.confirm(cut.last_commit_position)

    def end_column_changes(self, cut: CutSlices) -> None:
        """Drops the earlier columns of tables that changed before this cut began: no later event can have them."""
        for name, schema in list(self._changing.items()):
            if _is_behind(cut, schema):
                self._store.tables.end_change(self._table_ids[name], schema.generation)
                del self._changing[name]
                log.info("change of columns followed", table=str(name), columns=", ".join(schema.names))

    def send_heartbeat_if_due(self) -> None:
        """Sends a marker message when the open slice is due: on an idle stream, nothing else would close the slice.

        The next one is sent only after this one was read. A consumer that catches up with a backlog would otherwise
        send one per second, and each of them causes a cut.
        """
        if self._heartbeats.is_due:
            self._send(CUT, is_heartbeat=not self._heartbeats.is_idle)
            self._heartbeats.note_sent()

    def send_marker(self) -> str:
        """Sends a marker message that cuts the stream after every event that the source holds now; returns its text."""
        marker = f"{CUT}:{uuid.uuid4()}"
        self._marker_positions[marker] = _NOT_READ_YET
        self._send(marker)
        return marker

    def has_registered_through(self, marker: str) -> bool:
        """Returns whether every event before this marker message is registered."""
        return self.position > self._marker_positions[marker]

    def _send(self, text: str, *, is_heartbeat: bool = False) -> None:
        self._sent_at[text] = self._clock()
        with step(self._on_step, "source.mark"):
            self._stream.send_marker(text, is_heartbeat=is_heartbeat)

    def _with_silent_changes(self, cut: CutSlices) -> CutSlices:
        """Adds an empty slice for each table whose columns changed before the cut and that has no event in the cut."""
        shown = {name for name, _ in cut.slices}
        first = min(self._offsets, default=0)
        silent = {
            (name, first): SliceRows(schema=schema, rows=event_schema(schema).empty_table())
            for name, schema in self._changing.items()
            if name not in shown and _is_behind(cut, schema)
        }
        return replace(cut, slices={**cut.slices, **silent})

    def _cut(self, cut: CutSlices, ranges: tuple[PartitionRange, ...], slices: tuple[Slice, ...]) -> Cut:
        return Cut(
            stream=self._assignment.stream,
            # The end of the last registered cut. Cuts that had nothing to register may lie between it and this cut.
            start=encode_position(self._registered_end),
            position=encode_position(cut.end),
            commit_time=max(cut.commit_time, cut.read_until or cut.commit_time),
            label=cut.label,
            requested=cut.requested,
            partitions=ranges,
            tables=tuple(sorted(self._table_ids.values())),
            slices=slices,
            quarantined=tuple(self._quarantined(name, event) for name, event in cut.unfit),
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

    def _write(self, cut: CutSlices, name: TableName, part: PartitionRange, rows: SliceRows) -> Slice:
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
        return Slice.of(file, table_id=table_id, stream_partition=number, path=key, schema_id=schema_id)

    def _schema_id(self, table_id: int, schema: TableSchema, part: PartitionRange) -> str:
        known = self._schema_ids.get((table_id, schema))
        if known is None:
            known = self._store.tables.record_schema(table_id, schema, first_offset=part.start_offset, is_newest=False)
            self._schema_ids[table_id, schema] = known
            self._schemas[known] = schema
        return known


def _is_behind(cut: CutSlices, schema: TableSchema) -> bool:
    """Returns whether all of the cut lies behind the change to these columns. An empty cut has no slice to show it."""
    return schema.generation <= cut.start < cut.end


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collects no garbage in the block: a batch is made of many objects without cycles, which go once it is read."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
