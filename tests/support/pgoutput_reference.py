"""The plain decoder: one message after the other, one Python object per field. What the columnar one must equal."""

import struct
from dataclasses import dataclass, field

from cdc_pipeline.sources.pgoutput.decoder import DecodedBatch
from cdc_pipeline.sources.pgoutput.rows import RowGroup
from cdc_pipeline.sources.pgoutput.tuples import TupleColumn

POSTGRES_EPOCH = 946_684_800_000_000

Row = tuple[object, ...]
FieldValue = str | None
ABSENT = "<absent>"


@dataclass
class Decoded:
    """Every event as a plain tuple, in stream order per relation version."""

    rows: dict[tuple[int, tuple[str, ...]], list[Row]] = field(default_factory=dict)
    transactions: list[Row] = field(default_factory=list)
    relations: list[Row] = field(default_factory=list)
    truncates: list[Row] = field(default_factory=list)
    messages: list[Row] = field(default_factory=list)


class ReferenceDecoder:
    def __init__(self) -> None:
        self.decoded = Decoded()
        self._relations: dict[int, tuple[str, ...]] = {}
        self._described: dict[int, bytes] = {}
        self._begin: tuple[int, int, int] | None = None
        self._ordinal = 0

    def feed(self, message: bytes) -> None:
        kind = chr(message[0])
        if kind == "B":
            lsn, time, xid = struct.unpack_from(">QqI", message, 1)
            self._begin, self._ordinal = (lsn, time + POSTGRES_EPOCH, xid), 0
        elif kind == "C":
            assert self._begin is not None
            _, lsn, end_lsn, time = struct.unpack_from(">BQQq", message, 1)
            self.decoded.transactions.append((lsn, end_lsn, time + POSTGRES_EPOCH))
            self._begin = None
        elif kind == "R":
            self._relation(message)
        elif kind == "M":
            self._message(message)
        elif kind == "T":
            self._ordinal += 1
            (count,) = struct.unpack_from(">I", message, 1)
            oids = struct.unpack_from(f">{count}I", message, 6)
            self.decoded.truncates.append((oids, *self._place()))
        elif kind in "IUD":
            self._ordinal += 1
            self._row(kind, message)

    def _place(self) -> Row:
        assert self._begin is not None
        lsn, time, xid = self._begin
        return (lsn, self._ordinal, time, xid)

    def _relation(self, message: bytes) -> None:
        (oid,) = struct.unpack_from(">I", message, 1)
        if self._described.get(oid) == message:
            return
        self._described[oid] = message
        namespace, place = _name(message, 5)
        name, place = _name(message, place)
        identity, count = struct.unpack_from(">cH", message, place)
        place += 3
        columns = []
        for _ in range(count):
            flags = message[place]
            column, place = _name(message, place + 1)
            type_oid, modifier = struct.unpack_from(">Ii", message, place)
            place += 8
            columns.append((column, type_oid, modifier, flags == 1))
        assert self._begin is not None
        self._relations[oid] = tuple(column[0] for column in columns)
        described = (oid, namespace, name, identity.decode(), tuple(columns))
        self.decoded.relations.append((*described, self._begin[0], self._ordinal))

    def _message(self, message: bytes) -> None:
        (transactional,) = struct.unpack_from(">?", message, 1)
        prefix, place = _name(message, 10)
        content = message[place + 4 :]
        commit_lsn = self._begin[0] if transactional and self._begin else None
        self.decoded.messages.append((prefix, content, commit_lsn))

    def _row(self, kind: str, message: bytes) -> None:
        (oid,) = struct.unpack_from(">I", message, 1)
        old_kind, old, new, place = 0, None, None, 5
        if message[place] in b"KO":
            old_kind = message[place]
            old, place = _tuple(message, place + 1)
        if kind != "D":
            assert message[place] == ord("N")
            new, place = _tuple(message, place + 1)
        assert place == len(message)
        row = (kind.lower(), *self._place(), old_kind, old, new)
        self.decoded.rows.setdefault((oid, self._relations[oid]), []).append(row)


def _name(message: bytes, place: int) -> tuple[str, int]:
    end = message.index(0, place)
    return message[place:end].decode(), end + 1


def _tuple(message: bytes, place: int) -> tuple[tuple[FieldValue, ...], int]:
    (count,) = struct.unpack_from(">H", message, place)
    place += 2
    values: list[FieldValue] = []
    for _ in range(count):
        kind = message[place]
        place += 1
        if kind == ord("t"):
            (length,) = struct.unpack_from(">I", message, place)
            values.append(message[place + 4 : place + 4 + length].decode())
            place += 4 + length
        else:
            values.append(ABSENT if kind == ord("u") else None)
    return tuple(values), place


def as_reference(batches: list[DecodedBatch]) -> Decoded:
    """What the columnar decoder gave, in the reference decoder's form."""
    decoded = Decoded()
    for batch in batches:
        closed = batch.transactions
        columns = (closed.commit_position, closed.end_position, closed.commit_time)
        decoded.transactions += zip(*(column.tolist() for column in columns), strict=True)
        for change in batch.relations:
            named = change.relation
            described = tuple((c.name, c.type_oid, c.modifier, c.is_key) for c in named.columns)
            identity = (named.oid, named.namespace, named.name, named.replica_identity, described)
            decoded.relations.append((*identity, change.commit_lsn, change.ordinal))
        for cut in batch.truncates:
            decoded.truncates.append((cut.relation_oids, cut.commit_lsn, cut.ordinal, cut.commit_time, cut.xid))
        for said in batch.messages:
            decoded.messages.append((said.prefix, said.content, said.commit_lsn))
        for group in batch.groups:
            names = tuple(column.name for column in group.relation.columns)
            decoded.rows.setdefault((group.relation.oid, names), []).extend(_rows(group))
    return decoded


def _rows(group: RowGroup) -> list[Row]:
    new = _by_row(group.new, len(group.op))
    old = _by_row(group.old, len(group.op)) if group.old is not None else [()] * len(group.op)
    return [
        (
            chr(op),
            *(int(column[row]) for column in (group.commit_lsn, group.ordinal, group.commit_time, group.xid)),
            int(group.old_kind[row]),
            old[row] if group.old_kind[row] else None,
            None if chr(op) == "d" else new[row],
        )
        for row, op in enumerate(group.op.tolist())
    ]


def _by_row(columns: tuple[TupleColumn, ...], count: int) -> list[tuple[FieldValue, ...]]:
    for column in columns:
        column.values.validate(full=True)
    texts = [column.values.to_pylist() for column in columns]
    return [
        tuple(
            ABSENT if column.absent is not None and column.absent[row] else values[row]
            for column, values in zip(columns, texts, strict=True)
        )
        for row in range(count)
    ]
