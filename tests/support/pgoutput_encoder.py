"""Writes pgoutput messages of protocol version 1, as the server would."""

import struct

from cdc_pipeline.sources.pgoutput.messages import Relation

POSTGRES_EPOCH = 946_684_800_000_000

Field = tuple[str, bytes]
NULL: Field = ("n", b"")
UNCHANGED: Field = ("u", b"")


def text(value: str) -> Field:
    return ("t", value.encode())


def begin(commit_lsn: int, commit_time: int, xid: int) -> bytes:
    return struct.pack(">cQqI", b"B", commit_lsn, commit_time - POSTGRES_EPOCH, xid)


def commit(commit_lsn: int, end_lsn: int, commit_time: int) -> bytes:
    return struct.pack(">cBQQq", b"C", 0, commit_lsn, end_lsn, commit_time - POSTGRES_EPOCH)


def origin(lsn: int, name: str) -> bytes:
    return struct.pack(">cQ", b"O", lsn) + _name(name)


def type_name(oid: int, namespace: str, name: str) -> bytes:
    return struct.pack(">cI", b"Y", oid) + _name(namespace) + _name(name)


def relation(described: Relation) -> bytes:
    head = struct.pack(">cI", b"R", described.oid) + _name(described.namespace) + _name(described.name)
    columns = b"".join(
        struct.pack(">B", column.is_key) + _name(column.name) + struct.pack(">Ii", column.type_oid, column.modifier)
        for column in described.columns
    )
    return head + described.replica_identity.encode() + struct.pack(">H", len(described.columns)) + columns


def insert(oid: int, new: list[Field]) -> bytes:
    return struct.pack(">cI", b"I", oid) + b"N" + _tuple(new)


def update(oid: int, new: list[Field], old_kind: str = "", old: list[Field] | None = None) -> bytes:
    image = old_kind.encode() + _tuple(old) if old is not None else b""
    return struct.pack(">cI", b"U", oid) + image + b"N" + _tuple(new)


def delete(oid: int, old_kind: str, old: list[Field]) -> bytes:
    return struct.pack(">cI", b"D", oid) + old_kind.encode() + _tuple(old)


def truncate(oids: list[int], options: int) -> bytes:
    return struct.pack(f">cIB{len(oids)}I", b"T", len(oids), options, *oids)


def logical_message(lsn: int, prefix: str, content: bytes, *, transactional: bool) -> bytes:
    return struct.pack(">cBQ", b"M", transactional, lsn) + _name(prefix) + struct.pack(">I", len(content)) + content


def _name(name: str) -> bytes:
    return name.encode() + b"\0"


def _tuple(fields: list[Field]) -> bytes:
    parts = [struct.pack(">H", len(fields))]
    for kind, value in fields:
        parts.append(kind.encode())
        if kind == "t":
            parts.append(struct.pack(">I", len(value)) + value)
    return b"".join(parts)
