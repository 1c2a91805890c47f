"""Decodes PostgreSQL's pgoutput protocol, version 1, into columns. Creates no object per event or field."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cdc_pipeline.sources.pgoutput.messages import (
    LogicalMessage,
    OpenTransaction,
    Relation,
    RelationChange,
    Truncate,
    damaged,
    parse_logical_message,
    parse_relation,
    parse_truncate,
)
from cdc_pipeline.sources.pgoutput.rows import RowGroup, decode_rows
from cdc_pipeline.sources.pgoutput.timeline import Timeline
from cdc_pipeline.sources.pgoutput.tuples import Integers, MessageBuffer
from cdc_pipeline.sources.protocol import Transactions

_MESSAGE, _RELATION, _TRUNCATE, _TYPE = b"MRTY"
_ROWS = tuple(b"IUD")
_KINDS = tuple(b"BCORYMIUDT")
_SHORTEST_ROW_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatch:
    """The decoded messages of one feed. Rows of a transaction may be in an earlier feed than its commit.

    `groups` has one entry per relation version, in the order of their first rows.
    """

    transactions: Transactions
    groups: tuple[RowGroup, ...]
    relations: tuple[RelationChange, ...]
    truncates: tuple[Truncate, ...]
    messages: tuple[LogicalMessage, ...]


class PgOutputDecoder:
    """Decodes feeds. Keeps the open transaction and the known relations; names of types are passed over.

    A feed that raises DecodeError changes none of these.
    """

    def __init__(self) -> None:
        self.open_transaction: OpenTransaction | None = None
        self.relations: dict[int, Relation] = {}
        self.described_last: int | None = None
        """Oid of the relation that the last message described, None if it was another message."""

    def feed(self, payloads: Sequence[bytes]) -> DecodedBatch:
        """Decodes whole messages in stream order, at most 2 GiB. A transaction may continue in the next feed.

        Raises DecodeError for damaged messages.
        """
        buffer = MessageBuffer(payloads)
        _check_kinds(buffer)
        timeline = Timeline(buffer, self.open_transaction)
        versions = _Versions(self.relations)
        described = _Described(buffer, self.described_last)
        changes = tuple(
            RelationChange(
                relation=relation,
                commit_lsn=place.commit_lsn,
                ordinal=place.ordinal,
                described_after=described.before(message),
            )
            for message in _numbers(buffer, _RELATION)
            for relation in versions.add(message, parse_relation(buffer.message(message)))
            for place in (timeline.at(message),)
        )
        batch = DecodedBatch(
            transactions=timeline.transactions,
            groups=_decode_groups(buffer, versions, timeline),
            relations=changes,
            truncates=tuple(_decode_truncates(buffer, timeline)),
            messages=tuple(
                parse_logical_message(buffer.message(message), timeline.commit_lsn_at(message))
                for message in _numbers(buffer, _MESSAGE)
            ),
        )
        self.relations = versions.latest
        self.described_last = described.before(len(buffer.kinds))
        self.open_transaction = timeline.carried
        return batch


class _Versions:
    """The relations that were known before a feed, and the changes of relations in the feed, by message number."""

    def __init__(self, known: dict[int, Relation]) -> None:
        self._known = known
        self._changes: dict[int, list[tuple[int, Relation]]] = {}
        self.latest = dict(known)

    def add(self, message: int, relation: Relation) -> tuple[Relation, ...]:
        """Returns the relation if it differs from the known one, else (). The server may repeat a relation any time."""
        if self.latest.get(relation.oid) == relation:
            return ()
        self.latest[relation.oid] = relation
        self._changes.setdefault(relation.oid, []).append((message, relation))
        return (relation,)

    def split(self, oid: int, rows: Integers) -> Iterator[tuple[Relation, Integers]]:
        """Yields each version of a relation with its row messages. Raises DecodeError for an unknown relation."""
        changes = self._changes.get(oid, [])
        cuts = np.searchsorted(rows, [message for message, _ in changes])
        relations = [self._known.get(oid), *(relation for _, relation in changes)]
        for relation, part in zip(relations, np.split(rows, cuts), strict=True):
            if not len(part):
                continue
            if relation is None:
                raise damaged(f"a row event of the unknown relation {oid}", "a message R before it")
            yield relation, part


class _Described:
    """Finds the relation that the message before another one describes. `last`: that of the feed before."""

    def __init__(self, buffer: MessageBuffer, last: int | None) -> None:
        self._buffer = buffer
        self._last = last

    def before(self, message: int) -> int | None:
        """Returns the relation's oid. Names of types do not count: the server sends them before their relation."""
        number = message - 1
        while number >= 0 and self._buffer.kinds[number] == _TYPE:
            number -= 1
        if number < 0:
            return self._last
        if self._buffer.kinds[number] != _RELATION:
            return None
        return parse_relation(self._buffer.message(number)).oid


def _check_kinds(buffer: MessageBuffer) -> None:
    known = np.isin(buffer.kinds, _KINDS)
    if not known.all():
        found = bytes([buffer.kinds[~known][0]])
        raise damaged(f"a message of kind {found!r}", "one of B C O R Y M I U D T of protocol version 1")


def _numbers(buffer: MessageBuffer, kind: int) -> list[int]:
    return [int(number) for number in np.flatnonzero(buffer.kinds == kind)]


def _decode_groups(buffer: MessageBuffer, versions: _Versions, timeline: Timeline) -> tuple[RowGroup, ...]:
    rows = np.flatnonzero(np.isin(buffer.kinds, _ROWS))
    if (buffer.ends[rows] - buffer.starts[rows] < _SHORTEST_ROW_BYTES).any():
        raise damaged("a row event that ends before its tuple", f"at least {_SHORTEST_ROW_BYTES} bytes")
    oids = buffer.integers(buffer.starts[rows] + 1, ">u4")
    parts = [part for oid, of_relation in _by_oid(oids, rows) for part in versions.split(oid, of_relation)]
    parts.sort(key=lambda part: int(part[1][0]))
    return tuple(decode_rows(buffer, relation, part, timeline) for relation, part in parts)


def _by_oid(oids: Integers, rows: Integers) -> Iterator[tuple[int, Integers]]:
    if len(oids) and (oids == oids[0]).all():
        yield int(oids[0]), rows
        return
    order = np.argsort(oids, kind="stable")
    unique, firsts = np.unique(oids[order], return_index=True)
    parts = np.split(rows[order], firsts[1:]) if len(unique) else []
    for oid, part in zip(unique, parts, strict=True):
        yield int(oid), part


def _decode_truncates(buffer: MessageBuffer, timeline: Timeline) -> Iterator[Truncate]:
    for message in _numbers(buffer, _TRUNCATE):
        place = timeline.at(message)
        yield Truncate(
            relation_oids=parse_truncate(buffer.message(message)),
            commit_lsn=place.commit_lsn,
            ordinal=place.ordinal,
            commit_time=place.commit_time,
            xid=place.xid,
        )
