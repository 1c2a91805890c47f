"""The state that a reader of files keeps per table and stream partition, and its text in the metadata store."""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Self

import structlog

from cdc_pipeline.record import PARTITION_NAME, TableName, decode_position
from cdc_pipeline.sources.copied_rows import TEXT
from cdc_pipeline.sources.debezium.envelope import LAST_TIME, EnvelopeEvent
from cdc_pipeline.sources.debezium.one_line import LineRefused
from cdc_pipeline.sources.debezium.tables import Layout
from cdc_pipeline.sources.debezium.versions import encode_place, texts_in, written_sequence
from cdc_pipeline.sources.known import PartitionProgress
from cdc_pipeline.time_slice import EPOCH

log = structlog.get_logger()

_MICROSECOND = timedelta(microseconds=1)
_DIGEST_DIGITS = 16
_MOST_KEPT_ROWS = 2_000
"""A page of PostgreSQL has at most some hundred rows, which COPY may write at one position."""
_AHEAD = timedelta(days=1)
"""How far a time may be after that of its file: a time without a zone counts as UTC, and may be a local one."""
_DATE = re.compile(rf"{TEXT}(?:3[0-9]){{4}}2d(?:3[0-9]){{2}}2d(?:3[0-9]){{2}}")
_NONZERO = re.compile(r"p(?!0000!)|n")
"""The start of a sequence whose first field is a number. Rows of a snapshot have 0 where they lack a field."""


class TooLate(LineRefused):
    """An event below the horizon. The lake may have removed a newer tombstone of its id, so it cannot be applied."""

    def __init__(self, version: str, horizon: str) -> None:
        super().__init__(
            f"is too late: older than {written_sequence(horizon)}, below which nothing is accepted any more"
        )
        self.version = version


@dataclass(slots=True, kw_only=True)
class RowHorizon:
    """The horizon: the sequence below which events are refused. It never falls.

    It is the newest sequence of at least `late_by` ago. `next`: the newest sequence at the commit time `since`, in
    microseconds; it becomes the horizon once `late_by` has passed. `newest`: the newest sequence so far.
    """

    version: str = ""
    next: str = ""
    since: int = 0
    newest: str = ""

    def check(self, version: str) -> None:
        if version < self.version:
            raise TooLate(version, self.version)

    def move(self, version: str, commit_time: int, late_by: timedelta | None, *, written: int) -> None:
        """Records an accepted event, which may raise the horizon if `late_by` is set.

        `written`: when its file was, in microseconds. An event of a time of more than a day after that counts for
        nothing, and neither does a text where the newest sequence is a number: the horizon would refuse what follows.
        """
        latest, sequence = min(written + _AHEAD // _MICROSECOND, LAST_TIME), version.partition("~")[0]
        if late_by is None or commit_time > latest or (_DATE.match(sequence) and sequence > _as_text(latest)):
            return
        self.newest = max(self.newest, sequence, key=_numbers_last)
        if not self.since:
            self.since = commit_time
        if commit_time - self.since >= late_by // _MICROSECOND:
            if _numbers_last(self.next)[0] == _numbers_last(self.newest)[0]:
                self.version = max(self.version, self.next)
            self.next, self.since = self.newest, commit_time


def _numbers_last(sequence: str) -> tuple[bool, str]:
    return _NONZERO.match(sequence) is not None, sequence


def _as_text(time: int) -> str:
    """Returns how a sequence begins whose first field is this time, in microseconds."""
    return TEXT + (EPOCH + timedelta(microseconds=time)).strftime("%Y-%m-%dT%H:%M:%S").encode().hex()


@dataclass(slots=True, kw_only=True)
class PartitionMemory:
    """The state of one table in one stream partition.

    `position`: the highest source position. `event`: the last event. For a keyless table, `position` leaves out rows of
    a Debezium snapshot, since changes that the snapshot did not see may have lower positions; `rows`: the digests of
    its events at `position`, None if they are not known; `order`: the highest `total_order` of those. `servers`: those
    of MySQL or MariaDB that wrote the events; the negative number of one whose positions are below those of the others,
    which the order of the lines allowed in a stream of one partition. `has_updates`: whether an update with its row was
    read since the start. `texts`: which fields of `order_by` are texts. `written_again`: the ids of rows whose inserts
    and updates were sent again since the last event at `position`, or are at `position` where events of one transaction
    may share it; None if they are unknown.
    """

    position: int = 0
    event: EnvelopeEvent | None = None
    rows: dict[str, None] | None = field(default_factory=dict)
    order: int = 0
    servers: tuple[int, ...] = ()
    has_updates: bool = False
    texts: tuple[bool, ...] | None = None
    horizon: RowHorizon = field(default_factory=RowHorizon)
    written_again: set[str] | None = field(default_factory=set)

    @classmethod
    def decode(cls, text: str, *, horizon: str = "") -> Self:
        """Reads the text that `encode` wrote, now or when it wrote less. Raises ValueError for any other text.

        `horizon`: that of the whole table, if it is later.
        """
        place, *of_horizon = text.split(" ")
        place, _, servers = place.partition("@")
        position, *of_rows = place.split(":")
        memory = cls(position=int(position, 16), rows=None, written_again=None)
        memory.servers = tuple(map(int, servers.split(","))) if servers else ()
        if of_rows:
            order, digests = of_rows
            starts = range(0, len(digests), _DIGEST_DIGITS)
            memory.rows = dict.fromkeys(digests[start : start + _DIGEST_DIGITS] for start in starts)
            memory.order = int(order, 16)
        if of_horizon:
            version, next_, since, newest = of_horizon
            memory.horizon = RowHorizon(version=version, next=next_, since=int(since), newest=newest)
        memory.horizon.version = max(memory.horizon.version, horizon)
        return memory

    def encode(self) -> str:
        """Returns the position as text, followed by its rows, the servers and the horizon if there are any."""
        return self.encode_at(self.position)

    def encode_at(self, position: int) -> str:
        """Returns the same for another position."""
        kept, rows = self.horizon, self.rows
        known = f":{self.order:x}:{''.join(rows)}" if rows and len(rows) <= _MOST_KEPT_ROWS else ""
        servers = f"@{','.join(map(str, self.servers))}" if self.servers else ""
        rest = f" {kept.version} {kept.next} {kept.since} {kept.newest}" if kept.since else ""
        return "%032x" % position + known + servers + rest  # noqa: UP031 - half the time, for each transaction

    def end_again(self) -> None:
        """Forgets which rows were written again, at an event that was not sent before."""
        if self.written_again != set():
            self.written_again = set()

    def follow(self, other: Self) -> None:
        """Goes on where `other` ended, if that is higher."""
        self.written_again = None
        self.servers += tuple(server for server in other.servers if server not in self.servers)
        if other.position > self.position:
            self.position, self.order = other.position, other.order
            self.rows = None if other.rows is None else dict(other.rows)
        elif other.position == self.position:
            known = self.rows is not None and other.rows is not None
            self.rows = {**(self.rows or {}), **(other.rows or {})} if known else None
            self.order = max(self.order, other.order)

    def look_at_order(self, table: TableName, version: str) -> None:
        """Warns once of a field with numbers in some rows and texts in others: they do not sort by what they mean."""
        found = texts_in(version)
        known = found if self.texts is None else self.texts
        if any(one != other for one, other in zip(known, found, strict=False)):
            log.warning(
                "order_by has numbers and texts",
                table=str(table),
                found="a row with a text counts as newer than every row with a number",
                remedy="write numbers alone or texts alone into each column of order_by",
            )
            known = ()
        self.texts = known

    def is_repeated_at(self, position: int, identity: str, order: int) -> bool:
        """Records an event of a keyless table. Returns whether it was recorded before.

        All below the highest position were. Of events at one position that are equal, one with a higher `order`, its
        number in the transaction, is another one. What is sent again never has a higher number.
        """
        if position != self.position:
            if position < self.position:
                return True
            self.rows, self.order = {}, 0
        if self.rows is None:
            return True
        digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]
        if digest in self.rows and order <= self.order:
            return True
        self.rows[digest], self.order = None, max(self.order, order)
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsLike:
    """What rows of one table and stream partition have in common. `sequence_by`, `late_by`: as for the decoder."""

    layout: Layout
    memory: PartitionMemory
    sequence_by: tuple[str, ...]
    late_by: timedelta | None

    @property
    def has_horizon(self) -> bool:
        return self.late_by is not None or bool(self.memory.horizon.version)

    def enter(self, version: str, commit_time: int, written: int) -> None:
        """Records an event of a file of the time `written`. Raises TooLate for one below the horizon."""
        self.memory.horizon.check(version)
        self.memory.horizon.move(version, commit_time, self.late_by, written=written)


def memory_of(table: TableName, reached: PartitionProgress) -> PartitionMemory:
    """Returns the table's registered state in a stream partition."""
    return PartitionMemory.decode(reached.last_position.get(str(table), "0"))


def highest_position(reached: PartitionProgress, other_keys: Collection[str]) -> int:
    """Returns the highest registered source position of a stream partition. `other_keys`: those that name no table."""
    states = table_states({0: reached}, other_keys)[0].values()
    return max((PartitionMemory.decode(text).position for text in states), default=0)


def table_states(
    progress: Mapping[int, PartitionProgress], other_keys: Collection[str]
) -> dict[int, dict[TableName, str]]:
    """Returns the encoded memory of each table, by stream partition. `other_keys`: those that name no table."""
    return {
        number: {TableName.parse(key): text for key, text in reached.last_position.items() if key not in other_keys}
        for number, reached in progress.items()
    }


def oldest_to_come(table: TableName, places: Iterable[PartitionProgress], is_own: Callable[[str], bool]) -> str:
    """Returns the lowest version that the table's next events can have in ordered stream partitions, "" for none.

    `is_own`: whether a stream partition, by its source name, can have events of the table. A partition that already
    had events of the table counts as well, and so does one without a name.
    """
    return min(
        (
            version_to_come(table, place)
            for place in places
            if str(table) in place.last_position
            or not (name := place.last_position.get(PARTITION_NAME, ""))
            or is_own(name)
        ),
        default="",
    )


def version_to_come(table: TableName, reached: PartitionProgress) -> str:
    """Returns the lowest version that the table's next events of an ordered stream partition can have."""
    return encode_place(memory_of(table, reached).position, decode_position(reached.offset))
