"""stream_to_slices: change events of the source -> registered slice files; only then the source is told."""

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from threading import Event

import structlog

from cdc_pipeline.areas import slice_key
from cdc_pipeline.metadata_store.cut import Cut, NewSlice, PartitionRange, QuarantinedEvent
from cdc_pipeline.metadata_store.rows import Assignment
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName, TableSchema, encode_position
from cdc_pipeline.slice_cutter import CUT, CutSlices, SliceCutter, SliceRows
from cdc_pipeline.slice_file import SliceFile, write_slice_file
from cdc_pipeline.sources.protocol import ChangeStream
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
        stream_name: str,
        assignment: Assignment,
        stream: ChangeStream,
        cutter: SliceCutter,
        table_ids: Mapping[TableName, int],
        object_store: ObjectStore,
        store: MetadataStore,
        clock: Callable[[], datetime],
        on_step: OnStep,
    ) -> None:
        self._name = stream_name
        self._assignment = assignment
        self._stream = stream
        self._cutter = cutter
        self._table_ids = table_ids
        self._schema_ids: dict[tuple[int, TableSchema], str] = {}
        self._objects = object_store
        self._store = store
        self._clock = clock
        self._on_step = on_step
        self._next_mark = clock()
        self._places: dict[str, int] = {}

    def run(self, stop: Event) -> None:
        """Until `stop` is set; what is open then is read again by the next owner."""
        while not stop.is_set():
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
            self._places.update((mark.text, mark.commit_position) for mark in batch.marks if mark.text == stop_at)
            for cut in self._cutter.add(batch):
                self._register(cut)
                ends.append(cut.end)
        self._give_sign_of_life()
        place = self._places.get(stop_at or "")
        return next((end for end in ends if place is not None and end > place), None)

    def _wait(self) -> timedelta:
        until_due = max(self._cutter.due + _GRACE, self._next_mark) - self._clock()
        return min(max(until_due, _SHORTEST_WAIT), _LONGEST_WAIT)

    def _give_sign_of_life(self) -> None:
        """A mark closes the slice that is due: on an idle stream nothing else would."""
        now = self._clock()
        if now >= max(self._cutter.due + _GRACE, self._next_mark):
            self._send_mark(CUT)
            self._next_mark = now + _LONGEST_WAIT

    def _send_mark(self, text: str) -> None:
        with step(self._on_step, "source.mark"):
            self._stream.send_mark(text)

    def _register(self, cut: CutSlices) -> None:
        slices = tuple(
            self._write(cut, name, number, cut.slices.get((name, number)))
            for name in sorted(self._table_ids)
            for number in self._assignment.next_offset
        )
        start, end = encode_position(cut.start), encode_position(cut.end)
        boundary = self._store.registry.register(
            Cut(
                stream=self._name,
                epoch=self._assignment.epoch,
                position=end,
                commit_time=cut.commit_time,
                label=cut.label,
                requested=cut.requested,
                partitions=tuple(
                    PartitionRange(stream_partition=number, start_offset=start, end_offset=end)
                    for number in self._assignment.next_offset
                ),
                slices=slices,
                quarantined=tuple(
                    QuarantinedEvent(
                        table_id=self._table_ids[name],
                        stream_partition=event.stream_partition,
                        version=event.version,
                        column=event.column,
                        reason=event.reason,
                        payload=dict(event.payload),
                    )
                    for name, event in cut.unfit
                ),
            )
        )
        if cut.last_commit_position is not None:
            with step(self._on_step, "slot.confirm"):
                self._stream.confirm(cut.last_commit_position)
        rows = sum(new.rows for new in slices)
        log.info("cut registered", boundary=boundary.boundary_id, label=str(cut.label), rows=rows, position=end)

    def _write(self, cut: CutSlices, name: TableName, number: int, rows: SliceRows | None) -> NewSlice:
        table_id = self._table_ids[name]
        if rows is None:
            return NewSlice(table_id=table_id, stream_partition=number)
        file = write_slice_file(rows.rows, rows.schema)
        file_name = SliceFileName(
            label=cut.label,
            start_offset=encode_position(cut.start),
            end_offset=encode_position(cut.end),
            sha256=file.sha256,
        )
        key = slice_key(name, number, str(file_name))
        with step(self._on_step, "slice_file.put"):
            self._objects.put_if_absent(key, file.content)
        return _new_slice(table_id, number, key, self._schema_id(table_id, rows.schema, cut), file)

    def _schema_id(self, table_id: int, schema: TableSchema, cut: CutSlices) -> str:
        known = self._schema_ids.get((table_id, schema))
        if known is None:
            known = self._store.tables.record_schema(table_id, schema, first_offset=encode_position(cut.start))
            self._schema_ids[table_id, schema] = known
        return known


def _new_slice(table_id: int, number: int, key: str, schema_id: str, file: SliceFile) -> NewSlice:
    return NewSlice(
        table_id=table_id,
        stream_partition=number,
        path=key,
        size_bytes=len(file.content),
        rows=file.rows,
        sha256=file.sha256,
        schema_id=schema_id,
        key_changes=file.key_changes,
        partial_rows=file.partial_rows,
        truncates=file.truncates,
        key_ranges=file.key_ranges,
        truncated_at=file.truncated_at,
    )
