"""Reads a folder of Debezium's events in batches of change events, one stream partition after the other."""

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Event as Signal

import msgspec
import numpy as np
import structlog

from cdc_pipeline.errors import PartitionFailed, SourceChanged, SourceError
from cdc_pipeline.record import TableName, decode_position, encode_position
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder, Decoded
from cdc_pipeline.sources.debezium.partition import Group, PartitionLines
from cdc_pipeline.sources.debezium.plain_events import Part
from cdc_pipeline.sources.files.partition_files import FILE_DIGEST
from cdc_pipeline.sources.known import Document, PartitionProgress
from cdc_pipeline.sources.protocol import EventBatch, Marker, Transactions
from cdc_pipeline.time_slice import EPOCH

log = structlog.get_logger()

_MICROSECOND = timedelta(microseconds=1)
_POLL = timedelta(milliseconds=200)


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a stream partition after one transaction, which ends at the stream position `end`."""

    end: int
    stream_partition: int
    offset: int
    last_position: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class OpenMarker:
    """A marker message that was sent. It is returned once every partition in `waits_for` has been read to its end.

    `ends`: the ends when it was sent, of the stream partitions where they are known: more may come all the time.
    """

    text: str
    waits_for: set[int]
    is_heartbeat: bool
    ends: Mapping[int, int] = field(default_factory=dict)

    def is_behind(self, number: int, returned_until: int) -> bool:
        """Returns whether the stream partition had nothing after this offset when the marker message was sent."""
        return number in self.ends and returned_until >= self.ends[number]


class _OpenGroup(msgspec.Struct, kw_only=True):
    """A transaction that is partly read. `first`: its stream position. `offset`: after its last line that was read."""

    first: int
    commit_time: int
    offset: int = 0
    last_position: dict[str, str] = msgspec.field(default_factory=dict)


class DebeziumStream:
    """Implements `ChangeStream` for lines of Debezium events, from a folder of files or from a broker.

    Stream positions count lines and marker messages in the order in which they are read, beginning at `position`.
    `progress`: where each stream partition continues; one that is not in `partitions` is not read, and stays there.
    `folders` returns the stream partitions that exist now. Partitions take turns; a turn reads a limited number of
    bytes.
    """

    def __init__(
        self,
        *,
        partitions: Mapping[int, PartitionLines],
        progress: Mapping[int, PartitionProgress],
        decoder: DebeziumDecoder,
        position: int,
        commit_time: datetime,
        folders: Callable[[], Collection[int]],
    ) -> None:
        self._partitions = dict(partitions)
        self._turns = list(self._partitions)
        self._decoder = decoder
        self._folders = folders
        self.position = self._next = position
        self._commit_time = (commit_time - EPOCH) // _MICROSECOND
        self._registered = dict(progress)
        self._reached: deque[Reached] = deque()
        self._open: _OpenGroup | None = None
        self._markers: list[OpenMarker] = []
        self._last_ends: dict[int, int] = {}
        """End of each stream partition at the last marker. If it did not move since, lines held back are released."""
        self._skipped: Counter[str] = Counter()

    @property
    def waits_for(self) -> int | None:
        """The stream partition that alone is read until its transaction ends; None between two transactions."""
        return None if self._open is None else self._turns[0]

    def read(self, wait: timedelta) -> EventBatch | None:
        # before reading, since there may always be more
        batch = self._finished_batch() or self._next_batch() or self._finished_batch()
        if batch is None:
            self._refuse_new_partitions()
            Signal().wait(min(wait, _POLL).total_seconds())
        return batch

    def send_marker(self, text: str, *, is_heartbeat: bool = False, ends: Mapping[int, int] | None = None) -> None:
        """`ends`: the present end of each stream partition where it is known."""
        marker = OpenMarker(text=text, waits_for=set(self._partitions), is_heartbeat=is_heartbeat, ends=ends or {})
        self._markers.append(marker)

    def progress_at(self, position: int) -> dict[int, PartitionProgress]:
        before = {number: decode_position(place.offset) for number, place in self._registered.items()}
        passed: dict[int, tuple[int, dict[str, str]]] = {}
        while self._reached and self._reached[0].end <= position:
            found = self._reached.popleft()
            _, last_position = passed.get(found.stream_partition) or (0, {})
            last_position.update(found.last_position)
            passed[found.stream_partition] = found.offset, last_position
        for number, (offset, last_position) in passed.items():
            known = self._registered[number].last_position
            self._registered[number] = PartitionProgress(
                offset=encode_position(offset), last_position={**known, **last_position}
            )
        begun = {
            number: lines.files.begun_between(before[number], decode_position(self._registered[number].offset))
            for number, lines in self._partitions.items()
        }
        return {number: replace(place, begun=begun.get(number, {})) for number, place in self._registered.items()}

    def check(self, registered: Mapping[TableName, str | None]) -> dict[TableName, list[Document]]:
        """Returns nothing: the events of a file carry their tables' descriptions."""
        del registered
        return {}

    def confirm(self, commit_position: int) -> None:
        """Keeps nothing: the offsets are in the metadata store, and the pipeline does not delete files.

        Raises SourceError if a folder of a stream partition cannot be read on: the others are registered by now.
        """
        del commit_position
        self._check()

    def close(self) -> None:
        for lines in self._partitions.values():
            lines.files.close()

    def _check(self) -> None:
        for lines in self._partitions.values():
            lines.files.check()

    def _next_batch(self) -> EventBatch | None:
        for _ in self._turns:
            batch = self._read_partition(self._turns[0])
            if batch is not None:
                return batch
        return None

    def _finished_batch(self) -> EventBatch | None:
        """Returns the finished marker messages, None without any. They have their places between two transactions."""
        finished = [] if self._open is not None else self._finished_markers()
        return self._marked(finished) if finished else None

    def _finished_markers(self) -> list[OpenMarker]:
        """Returns the marker messages that wait for no stream partition any more, and forgets them."""
        finished = [marker for marker in self._markers if not marker.waits_for]
        if finished:
            self._markers = [marker for marker in self._markers if marker.waits_for]
        return finished

    def _refuse_new_partitions(self) -> None:
        found = set(self._folders()) - self._registered.keys()
        if found:
            raise SourceChanged(
                f"the stream partition {min(found)} is new",
                expected=f"the stream partitions {sorted(self._registered)}, as they were when the consumer began",
                remedy="run cdc setup-source, then start the consumer again",
            )

    def _read_partition(self, number: int) -> EventBatch | None:
        """Reads one stream partition. In the middle of a transaction, the next turn is this partition's again."""
        lines = self._partitions[number]
        waiting = [marker for marker in self._markers if number in marker.waits_for]
        stands_still = lines.files.offset == self._last_ends.get(number)
        everything = any(not marker.is_heartbeat or stands_still for marker in waiting)
        groups = self._next_groups(number, everything=everything)
        if waiting and lines.files.at_end:
            self._last_ends[number] = lines.files.offset
        for marker in waiting:
            if lines.files.at_end or marker.is_behind(number, lines.returned_until):
                marker.waits_for.discard(number)
        batch = self._decoded(number, groups) if groups else None
        if self._open is None:
            self._turns.append(self._turns.pop(0))
        return batch

    def _next_groups(self, number: int, *, everything: bool) -> Sequence[Group]:
        """Returns the next lines of one stream partition. Raises PartitionFailed if there are others to go on with."""
        try:
            return self._partitions[number].next_groups(everything=everything)
        except SourceError as error:
            if error.retryable or isinstance(error, PartitionFailed) or len(self._registered) == 1:
                raise
            raise PartitionFailed(
                error.found, stream_partition=number, expected=error.expected, remedy=error.remedy
            ) from error

    def _decoded(self, number: int, groups: Sequence[Group]) -> EventBatch:
        transactions, parts, first = [], list[Part](), self._next
        for group in groups:
            parts.append((group.lines, self._open.first if group.continues and self._open is not None else first))
            first += len(group.lines)
        for group, decoded in zip(groups, self._decoder.add_all(number, parts), strict=True):
            if self._open is not None and not group.continues:
                transactions.append(self._closed(number, self._open))
            opened = self._open or _OpenGroup(first=self._next, commit_time=self._commit_time)
            self._add(opened, group, decoded)
            self._open = opened
            if group.is_closed:
                transactions.append(self._closed(number, opened))
        return EventBatch(events=self._decoder.take(number), transactions=transactions_of(transactions))

    def _add(self, opened: _OpenGroup, group: Group, decoded: Decoded) -> None:
        if decoded.skipped:
            self._skipped.update(decoded.skipped)
        self._next += len(group.lines)
        if group.lines:
            last = group.lines[-1].raw
            opened.offset = last.place + 1
            if digest := last.digest:
                opened.last_position[FILE_DIGEST] = digest
        opened.last_position.update(decoded.last_position)
        if decoded.commit_time is not None:
            opened.commit_time = self._commit_time = decoded.commit_time

    def _closed(self, number: int, closed: _OpenGroup) -> tuple[int, int, int]:
        self._open = None
        self._reached.append(
            Reached(end=self._next, stream_partition=number, offset=closed.offset, last_position=closed.last_position)
        )
        return closed.first, self._next, closed.commit_time

    def _marked(self, finished: Sequence[OpenMarker], *, holds_lines: bool = False) -> EventBatch:
        if self._skipped:
            log.info("lines without rows skipped", counts=dict(sorted(self._skipped.items())))
            self._skipped.clear()
        is_end = not holds_lines and ends_source(finished, self._check, registers=bool(self._reached))
        holds_back = any(lines.holds_back for lines in self._partitions.values())
        first, self._next = self._next, self._next + len(finished)
        return marker_batch(finished, first, self._commit_time, is_end=is_end, holds_back=holds_back)


def ends_source(markers: Sequence[OpenMarker], check: Callable[[], None], *, registers: bool) -> bool:
    """Returns whether all that the source held was read; False if all are heartbeats, or `check` raises SourceError.

    Raises that error if nothing that was read is still to be registered. Else `confirm` does, after the registration.
    """
    if all(marker.is_heartbeat for marker in markers):
        return False
    try:
        check()
    except SourceError:
        if registers:
            return False
        raise
    return True


def marker_batch(
    markers: Sequence[OpenMarker], first: int, commit_time: int, *, is_end: bool, holds_back: bool = False
) -> EventBatch:
    """Returns marker messages, each as a transaction without events, from the stream position `first` on."""
    places = range(first, first + len(markers))
    return EventBatch(
        events=(),
        transactions=transactions_of([(place, place + 1, commit_time) for place in places]),
        markers=tuple(
            Marker(
                text=each.text,
                commit_position=place,
                is_end=is_end and not each.is_heartbeat,
                holds_back=holds_back,
            )
            for each, place in zip(markers, places, strict=True)
        ),
    )


def transactions_of(found: Sequence[tuple[int, int, int]]) -> Transactions:
    numbers = np.array(found, dtype=np.int64).reshape(len(found), 3)
    return Transactions(commit_position=numbers[:, 0], end_position=numbers[:, 1], commit_time=numbers[:, 2])
