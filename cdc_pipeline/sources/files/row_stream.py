"""Reads change files with rows block by block: each row is a transaction of its own."""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import Event as Signal

import numpy as np
import structlog

from cdc_pipeline.record import TableName, decode_position, encode_position
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.debezium.partition import MOST_BYTES
from cdc_pipeline.sources.files.listed_files import ListedFiles
from cdc_pipeline.sources.files.partition_files import FILE_DIGEST
from cdc_pipeline.sources.files.record_blocks import PlacedBlock
from cdc_pipeline.sources.files.row_events import BlockEvents, RowBlocks
from cdc_pipeline.sources.files.row_images import NO_TIME
from cdc_pipeline.sources.files.stream import OpenMarker, ends_source, marker_batch
from cdc_pipeline.sources.known import Document, PartitionProgress
from cdc_pipeline.sources.protocol import EventBatch, Integers, Transactions
from cdc_pipeline.time_slice import EPOCH

log = structlog.get_logger()

_MICROSECOND = timedelta(microseconds=1)
_POLL = timedelta(milliseconds=200)
_NOT_LISTED = "row of a table that is not listed"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadRows:
    """Rows of one block that were read, from the stream position `first` and the offset `place` on.

    `digest`, `last_digest`: as for `PlacedBlock`. `memory`: the encoded memory of `table` after each row, or one that
    holds after all of them. `taken`: how many rows are registered.
    """

    first: int
    rows: int
    place: int
    digest: str
    last_digest: str
    table: TableName | None
    memory: Sequence[str]
    taken: int = 0

    @property
    def end(self) -> int:
        return self.first + self.rows

    def progress(self, known: Mapping[str, str]) -> PartitionProgress:
        """Returns where the stream partition continues after `taken` rows."""
        digest = self.last_digest if self.taken == self.rows else self.digest
        last_position = {**known, FILE_DIGEST: digest}
        if self.table is not None:
            last_position[str(self.table)] = self.memory[min(self.taken, len(self.memory)) - 1]
        return PartitionProgress(offset=encode_position(self.place + self.taken), last_position=last_position)


class RowStream:
    """Implements `ChangeStream` for rows with an operation, in files that are one stream partition.

    Stream positions count rows and marker messages in the order in which they are read, beginning at `position`.
    `table_of`: the table of a file, None if pipeline.yml lists it no more.
    """

    def __init__(
        self,
        *,
        number: int,
        files: ListedFiles,
        blocks: RowBlocks,
        progress: PartitionProgress,
        table_of: Callable[[str], TableSettings | None],
        position: int,
        commit_time: datetime,
    ) -> None:
        self._number = number
        self._files = files
        self._blocks = blocks
        self._table_of = table_of
        self.position = self._next = position
        self._commit_time = (commit_time - EPOCH) // _MICROSECOND
        self._registered = progress
        self._read: deque[_ReadRows] = deque()
        self._markers: list[OpenMarker] = []
        self._last_end = -1
        """End of the rows at the last marker. If it did not move since, a heartbeat looks for new files, too."""
        self._skipped: Counter[str] = Counter()

    def read(self, wait: timedelta) -> EventBatch | None:
        stands_still = self._files.offset == self._last_end
        fresh = any(not marker.is_heartbeat or stands_still for marker in self._markers)
        placed = self._files.next_block(MOST_BYTES, fresh=fresh)
        if placed is not None:
            return self._batch(placed)
        if self._markers:
            self._last_end = self._files.offset
            return self._marked()
        Signal().wait(min(wait, _POLL).total_seconds())
        return None

    def send_marker(self, text: str, *, is_heartbeat: bool = False) -> None:
        self._markers.append(OpenMarker(text=text, waits_for=set(), is_heartbeat=is_heartbeat))

    def progress_at(self, position: int) -> dict[int, PartitionProgress]:
        before = decode_position(self._registered.offset)
        while self._read and self._read[0].first < position:
            rows = self._read.popleft()
            rows = replace(rows, taken=min(position, rows.end) - rows.first)
            self._registered = rows.progress(self._registered.last_position)
            if position < rows.end:
                self._read.appendleft(rows)
                break
        begun = self._files.begun_between(before, decode_position(self._registered.offset))
        return {self._number: replace(self._registered, begun=begun)}

    def check(self, registered: Mapping[TableName, str | None]) -> dict[TableName, list[Document]]:
        """Returns nothing: pipeline.yml describes the tables."""
        del registered
        return {}

    def confirm(self, commit_position: int) -> None:
        """Keeps nothing: the pipeline does not delete files.

        Raises SourceError if a folder cannot be read on: the rows of the others are registered by now.
        """
        del commit_position
        self._files.check()

    def close(self) -> None:
        self._files.close()

    def _batch(self, placed: PlacedBlock) -> EventBatch:
        table, rows, first = self._table_of(placed.file), placed.block.rows, self._next
        if table is None:
            found = BlockEvents(
                events=(), times=np.full(rows, NO_TIME), memory=(), skipped=Counter({_NOT_LISTED: rows})
            )
        else:
            found = self._blocks.events(placed, table, first)
        self._skipped.update(found.skipped)
        self._next += rows
        self._read.append(
            _ReadRows(
                first=first,
                rows=rows,
                place=placed.place,
                digest=placed.digest,
                last_digest=placed.last_digest,
                table=None if table is None else table.table,
                memory=found.memory,
            )
        )
        positions = np.arange(first, self._next)
        return EventBatch(
            events=found.events,
            transactions=Transactions(
                commit_position=positions, end_position=positions + 1, commit_time=self._filled(found.times)
            ),
        )

    def _filled(self, times: Integers) -> Integers:
        """Gives each row without a time that of the row before it."""
        known = np.maximum.accumulate(np.where(times == NO_TIME, -1, np.arange(len(times))))
        filled = np.where(known < 0, self._commit_time, times[known])
        self._commit_time = int(filled[-1])
        return filled

    def _marked(self) -> EventBatch:
        if self._skipped:
            log.info("rows without changes skipped", counts=dict(sorted(self._skipped.items())))
            self._skipped.clear()
        is_end = ends_source(self._markers, self._files.check, registers=bool(self._read))
        markers, self._markers = self._markers, []
        first, self._next = self._next, self._next + len(markers)
        return marker_batch(markers, first, self._commit_time, is_end=is_end)
