"""GTIDs with tags, which MySQL 8.3 and newer have and mysql-replication does not know: their events, their sets.

A server that ever committed a transaction with a tag shows the tag in its sets for good, so a reader needs both.

Numbers are written as the server's library `mysql::serialization` does: as many one bits as more bytes follow, a zero
bit, then the number, all little-endian. A signed number has its sign in the lowest bit.
"""

import struct
from uuid import UUID

import msgspec

from cdc_pipeline.errors import DecodeError
from cdc_pipeline.sources.mysql.gtid_set import GtidSet

_FLAGS, _UUID, _NUMBER, _TAG = range(4)
"""Fields of the event, in this order; those after them are not read."""
_UUID_BYTES = 16
_VERSION = 1
_WITH_TAGS = 1
_SET_SIZE = 26
"""Where COM_BINLOG_DUMP_GTID has the size of its set, behind the packet's length, and then the set."""


class TaggedGtid(msgspec.Struct, frozen=True, kw_only=True):
    """The event before a transaction: `gtid` is `uuid:tag:number`, `timestamp` in seconds since 1970."""

    gtid: str
    timestamp: int


def tagged_gtid(content: bytes, timestamp: int) -> TaggedGtid:
    """Decodes the content of an event, without its header. Raises DecodeError for another content."""
    numbers = _Numbers(content)
    try:
        numbers.expect(_VERSION)
        numbers.expect(len(content))
        numbers.next()  # the last field that a reader has to know
        numbers.expect(_FLAGS)
        numbers.next()
        numbers.expect(_UUID)
        uuid = UUID(bytes=bytes(numbers.next() for _ in range(_UUID_BYTES)))
        numbers.expect(_NUMBER)
        number = numbers.next() >> 1
        numbers.expect(_TAG)
        tag = numbers.text()
    except (ValueError, IndexError) as error:
        raise DecodeError(
            f"a GTID with a tag in the source's log cannot be read: {error}: {content[:80].hex()}",
            expected="an event as MySQL 8.3 to 9.7 write it",
            remedy="read a supported server",
        ) from error
    return TaggedGtid(gtid=f"{uuid}:{tag}:{number}", timestamp=timestamp)


def encoded_set(executed: GtidSet) -> bytes:
    """Returns a set as COM_BINLOG_DUMP_GTID takes it. Without a tag in it, it is the form that every server reads."""
    origins = sorted(executed.intervals)
    with_tags = any(":" in origin for origin in origins)
    count = (_WITH_TAGS << 56 | len(origins) << 8 | _WITH_TAGS) if with_tags else len(origins)
    parts = [struct.pack("<Q", count)]
    for origin in origins:
        uuid, _, tag = origin.partition(":")
        found = executed.intervals[origin]
        parts += [UUID(uuid).bytes, bytes([len(tag) << 1]) + tag.encode() if with_tags else b""]
        parts += [struct.pack("<Q", len(found)), *(struct.pack("<QQ", *interval) for interval in found)]
    return b"".join(parts)


def asking_for(packet: bytes, executed: GtidSet) -> bytes:
    """Returns a packet of COM_BINLOG_DUMP_GTID with another set."""
    encoded = encoded_set(executed)
    whole = packet[4:_SET_SIZE] + struct.pack("<I", len(encoded)) + encoded
    return struct.pack("<I", len(whole)) + whole


class _Numbers:
    """The numbers of an event, from the first one on. All methods raise IndexError behind its end."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._place = 0

    def next(self) -> int:
        first = self._content[self._place]
        more = (~first & first + 1).bit_length() - 1  # the one bits at its end
        octets = self._content[self._place : self._place + more + 1]
        if len(octets) <= more:
            message = f"it ends after {len(self._content)} bytes"
            raise IndexError(message)
        self._place += more + 1
        return int.from_bytes(octets, "little") >> min(more + 1, 8)

    def expect(self, number: int) -> None:
        """Raises ValueError if the next number is another one."""
        found = self.next()
        if found != number:
            message = f"{found} instead of {number} before byte {self._place}"
            raise ValueError(message)

    def text(self) -> str:
        """Raises ValueError for a text that is empty or no ASCII."""
        size = self.next()
        self._place += size
        found = self._content[self._place - size : self._place]
        if len(found) < max(size, 1):
            message = f"a text of {len(found)} bytes"
            raise ValueError(message)
        return found.decode("ascii")
