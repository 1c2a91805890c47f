"""Groups the lines of one stream partition by the transactions of their source."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, Skipped, content_of
from cdc_pipeline.sources.debezium.one_line import LineRefused

MOST_BYTES = 4 << 20
LONGEST_REST = 60.0
"""Seconds. The lines of one transaction are not so far apart, as a rule."""
_LONGEST_PAUSE = 1.0
"""Seconds between two looks. After a longer one, lines may have come that are only not here yet."""
Content = EnvelopeEvent | Skipped | LineRefused


class SourceLine(Protocol):
    """A complete line of a file, or a record of a broker. `text`: the whole line, or the record as one line.

    `place`: the offset in the stream partition. `number`: the line's number in the file, or the record's. `written`:
    time of the file's last change, or of the record, in microseconds since 1970. `digest`: what is registered beside
    the offset after this line, "" for nothing. `size_bytes`: about the memory that it takes.
    """

    @property
    def place(self) -> int: ...
    @property
    def file(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def text(self) -> bytes: ...
    @property
    def written(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...


Decode = Callable[[SourceLine], Content]
"""Returns the content of a line, or why it cannot be read. Raises nothing for a damaged line."""


class LineSource(Protocol):
    """The lines of one stream partition, from files or from a broker."""

    @property
    def offset(self) -> int:
        """The offset after the last line that was returned."""

    @property
    def at_end(self) -> bool:
        """Whether the lines that were returned reach the present end of the stream partition."""

    def next_lines(self, most_bytes: int, *, fresh: bool) -> Sequence[SourceLine]:
        """Returns lines of about `most_bytes`, fewer if no more are there yet. `fresh`: looks for new ones now."""

    def begun_between(self, start: int, end: int) -> dict[int, str]:
        """Returns number and name of the files that were begun after the offset `start`, up to `end`."""

    def check(self) -> None:
        """Raises SourceError if a part of the stream partition cannot be read on, and the rest of it can."""

    def close(self) -> None:
        """Closes what is open."""


class LinesWithoutFiles:
    """The part of `LineSource` that needs files: what stops a stream partition without them is raised where it is read.

    Its client is closed for all stream partitions at once.
    """

    __slots__ = ()

    def begun_between(self, start: int, end: int) -> dict[int, str]:
        del start, end
        return {}

    def check(self) -> None:
        """Raises nothing."""

    def close(self) -> None:
        """Does nothing."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line and its content. The traceback of a refusal may lead back to it: the garbage collector follows it."""

    raw: SourceLine
    content: Content

    @property
    def event(self) -> EnvelopeEvent | None:
        return self.content if isinstance(self.content, EnvelopeEvent) else None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive lines of one transaction. A large transaction has several groups.

    `continues`: the group continues the transaction of the group before it. `is_closed`: the transaction ends here.
    """

    lines: Sequence[Line]
    continues: bool
    is_closed: bool


class PartitionLines:
    """Returns whole transactions; only one that is larger than one read is returned in parts.

    One that was returned in part stays open while the source has more that is not here yet, as between two answers.
    The last transaction is held back until another one follows; at the end of the files, until the caller wants
    everything, or nothing has followed for LONGEST_REST: beside busy stream partitions the caller may never want that.
    So one that is still being written is not cut, a key change is not parted from its second event, and between two
    reads the caller may turn to other stream partitions. `monotonic`: seconds that never go back.
    """

    def __init__(
        self, files: LineSource, decode: Decode | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.files = files
        self._decode = decode or debezium_content
        self._monotonic = monotonic
        self._looked = self._came = monotonic()
        self._held: list[Line] = []
        self._open: str | None = None
        """The transaction of which a part was returned and more may follow."""

    @property
    def returned_until(self) -> int:
        """The offset after the last line that was returned, and not held back."""
        return self._held[0].raw.place if self._held else self.files.offset

    @property
    def holds_back(self) -> bool:
        return bool(self._held)

    def next_groups(self, *, everything: bool) -> list[Group]:
        """Returns the next groups, none if nothing new is complete. `everything`: also the transaction held back."""
        now = self._monotonic()
        if now - self._looked > _LONGEST_PAUSE:
            self._came = now
        self._looked = now
        rests = bool(self._held) and now - self._came > LONGEST_REST
        following = self.files.next_lines(MOST_BYTES, fresh=everything or rests)
        if following:
            self._came = now
        everything = everything or (rests and not following)
        if not (following or self._open is not None or self.files.at_end):
            return []
        lines = self._held + [Line(raw=raw, content=self._decode(raw)) for raw in following]
        self._held = []
        parts = _parts(lines)
        continues = self._open is not None and (not parts or _transaction(parts[0]) in (None, self._open))
        if continues and not parts and self.files.at_end:
            parts = [[]]
        if not parts:
            return []
        if continues and not self.files.at_end and not any(line.event for line in lines):
            open_after = self._open
        else:
            open_after = self._hold_last(parts, continues=continues, everything=everything)
        if not parts and self._open is not None:
            self._open = None
            return [Group(lines=[], continues=True, is_closed=True)]
        self._open = open_after
        last = len(parts) - 1
        return [
            Group(
                lines=part,
                continues=continues and number == 0,
                is_closed=open_after is None or number < last,
            )
            for number, part in enumerate(parts)
        ]

    def _hold_last(self, parts: list[list[Line]], *, continues: bool, everything: bool) -> str | None:
        """Takes the last transaction out of `parts` and holds it back, if more of it may follow.

        A transaction that is too large to be held back stays in `parts`, as far as it was read; then its name is
        returned, else None. `continues`: the first of `parts` belongs to a transaction that was returned in part.
        """
        last, is_begun = _transaction(parts[-1]), continues and len(parts) == 1
        if last is None or (self.files.at_end and (everything or is_begun)):
            return None
        if not self.files.at_end and (is_begun or (len(parts) == 1 and _size_bytes(parts[0]) >= MOST_BYTES)):
            parts[-1], self._held = before_last_delete(parts[-1])
            if parts[-1] or is_begun:
                return last
            parts.pop()
        else:
            self._held = parts.pop()
        return None


def debezium_content(raw: SourceLine) -> Content:
    """Decodes a line with Debezium's envelope."""
    return content_of(raw.text)


def _parts(lines: Sequence[Line]) -> list[list[Line]]:
    """Groups lines by transaction. A line without a row belongs to the transaction of the line before it.

    So does a tombstone: the delete before it shows what it is, and is not known after a restart between them.
    """
    parts: list[list[Line]] = []
    before: EnvelopeEvent | None = None
    for line in lines:
        event = _row_event(line)
        if event is not None:
            if before is not None and (event.transaction is None or event.transaction != before.transaction):
                parts.append([])
            before = event
        if not parts:
            parts.append([])
        parts[-1].append(line)
    return parts


def _transaction(part: Sequence[Line]) -> str | None:
    return next((event.transaction for line in part if (event := _row_event(line)) is not None), None)


def _row_event(line: Line) -> EnvelopeEvent | None:
    """Returns the line's event, None for a tombstone."""
    event = line.event
    return None if event is None or event.is_tombstone else event


def _size_bytes(part: Sequence[Line]) -> int:
    return sum(line.raw.size_bytes for line in part)


def before_last_delete(part: list[Line]) -> tuple[list[Line], list[Line]]:
    """Splits off a delete at the end with all lines after it: it may be the first event of a key change.

    The second part waits for the line after it. A delete before MOST_BYTES of lines without a row begins none: only its
    own tombstone comes before the second event. Nothing is split off then.
    """
    last = max((number for number, line in enumerate(part) if _row_event(line) is not None), default=0)
    event = _row_event(part[last]) if part else None
    may_begin = event is not None and event.operation == "d" and _size_bytes(part[last + 1 :]) < MOST_BYTES
    end = last if may_begin else len(part)
    return part[:end], part[end:]
