"""Records of the pgoutput protocol, and parsers of its rare messages: relation, logical message, truncate."""

import struct
from dataclasses import dataclass
from datetime import UTC, datetime

from cdc_pipeline.errors import DecodeError

POSTGRES_EPOCH = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
"""2000-01-01T00:00:00Z, from which PostgreSQL counts, in microseconds since 1970."""

_REMEDY = "read the stream again from its last registered offset; if it fails there again, take a new snapshot"


def damaged(found: str, expected: str) -> DecodeError:
    return DecodeError(found, expected=expected, remedy=_REMEDY)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationColumn:
    name: str
    type_oid: int
    modifier: int
    is_key: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table as the stream describes it. `replica_identity` is `pg_class.relreplident`: d, n, f or i."""

    oid: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationChange:
    """A new or changed relation. It holds for events after `ordinal` in this transaction and for all later ones.

    `described_after`: oid of the relation that the message right before describes, None if it is another message. The
    server describes a partitioned table right before each of its partitions that it publishes through the table.
    """

    relation: Relation
    commit_lsn: int
    ordinal: int
    described_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalMessage:
    """A logical message. `commit_lsn` is None for a message outside of any transaction."""

    prefix: str
    content: bytes
    commit_lsn: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """A truncate of one or several relations. `commit_time`: in microseconds since 1970."""

    relation_oids: tuple[int, ...]
    commit_lsn: int
    ordinal: int
    commit_time: int
    xid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction whose commit message was not read yet. `ordinal` counts its events so far."""

    commit_lsn: int
    commit_time: int
    xid: int
    ordinal: int


def decode_name(octets: bytes) -> str:
    """Returns a name. Each byte that is no UTF-8, as databases in SQL_ASCII may have, becomes `%` and two digits."""
    try:
        return octets.decode()
    except UnicodeDecodeError:
        letters = octets.decode(errors="surrogateescape")
        return "".join(f"%{ord(each) - 0xDC00:02X}" if "\udc80" <= each <= "\udcff" else each for each in letters)


@dataclass(slots=True)
class MessageReader:
    """Reads one message field by field. A read beyond the message's end raises DecodeError."""

    message: bytes
    place: int = 1

    def numbers(self, layout: str) -> tuple[int, ...]:
        size = struct.calcsize(layout)
        self._check(size)
        values = struct.unpack_from(layout, self.message, self.place)
        self.place += size
        return values

    def text(self) -> str:
        end = self.message.find(b"\0", self.place)
        if end < 0:
            raise damaged(f"a {self._kind} message with a name that has no end", "a zero byte after the name")
        octets = self.message[self.place : end]
        self.place = end + 1
        return decode_name(octets)

    def octets(self, size: int) -> bytes:
        self._check(size)
        self.place += size
        return self.message[self.place - size : self.place]

    def finish(self) -> None:
        left = len(self.message) - self.place
        if left:
            raise damaged(f"{left} bytes after the end of a {self._kind} message", "none")

    def _check(self, size: int) -> None:
        if size < 0 or self.place + size > len(self.message):
            found = f"a {self._kind} message of {len(self.message)} bytes"
            raise damaged(found, f"{size} more bytes after byte {self.place}")

    @property
    def _kind(self) -> str:
        return chr(self.message[0])


def parse_relation(message: bytes) -> Relation:
    reader = MessageReader(message)
    (oid,) = reader.numbers(">I")
    namespace, name = reader.text(), reader.text()
    identity, count = reader.numbers(">BH")
    columns = tuple(_parse_column(reader) for _ in range(count))
    reader.finish()
    return Relation(
        oid=oid,
        namespace=namespace or "pg_catalog",
        name=name,
        replica_identity=chr(identity),
        columns=columns,
    )


def _parse_column(reader: MessageReader) -> RelationColumn:
    (flags,) = reader.numbers(">B")
    name = reader.text()
    type_oid, modifier = reader.numbers(">Ii")
    return RelationColumn(name=name, type_oid=type_oid, modifier=modifier, is_key=bool(flags & 1))


def parse_logical_message(message: bytes, commit_lsn: int | None) -> LogicalMessage:
    reader = MessageReader(message)
    flags, _ = reader.numbers(">BQ")
    prefix = reader.text()
    (size,) = reader.numbers(">I")
    content = reader.octets(size)
    reader.finish()
    transactional = bool(flags & 1)
    if transactional and commit_lsn is None:
        raise damaged("a transactional M message outside of any transaction", "a B message before it")
    return LogicalMessage(prefix=prefix, content=content, commit_lsn=commit_lsn if transactional else None)


def parse_truncate(message: bytes) -> tuple[int, ...]:
    """Returns the relation oids of a truncate."""
    reader = MessageReader(message)
    count, _ = reader.numbers(">IB")
    oids = reader.numbers(f">{min(count, len(message))}I")
    reader.finish()
    return oids
