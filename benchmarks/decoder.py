"""Events per second of pgoutput -> typed Arrow columns, beside a plain decoder that makes a Python object per field.

Run: python -m benchmarks.decoder [events]
"""

import struct
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa

from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.sources.pgoutput import PgOutputDecoder, Relation, RelationColumn
from cdc_pipeline.types import arrow_schema, parse_text, resolve

OID = 16_400
EVENTS = 500_000
EVENTS_PER_TRANSACTION = 1_000
EVENTS_PER_FEED = 25_000
ROUNDS = 3
SCHEMA = TableSchema(
    columns=tuple(
        Column(name=name, type=type_)
        for name, type_ in (
            ("order_id", "int8"),
            ("customer_id", "int4"),
            ("status", "text"),
            ("amount", "numeric(12,2)"),
            ("paid", "boolean"),
            ("ordered_on", "date"),
            ("created_at", "timestamptz"),
            ("updated_at", "timestamptz"),
            ("weight", "float8"),
            ("note", "text"),
        )
    ),
    key=("order_id",),
)
PARSERS: dict[str, Callable[[str], object]] = {
    "int8": int,
    "int4": int,
    "text": str,
    "numeric(12,2)": Decimal,
    "boolean": lambda text: text == "t",
    "date": date.fromisoformat,
    "timestamptz": datetime.fromisoformat,
    "float8": float,
}


def synthetic_stream(events: int) -> list[bytes]:
    """Sixty updates to forty inserts, a thousand events in a transaction."""
    columns = tuple(
        RelationColumn(name=column.name, type_oid=25, modifier=-1, is_key=column.name in SCHEMA.key)
        for column in SCHEMA.columns
    )
    relation = Relation(oid=OID, namespace="public", name="orders", replica_identity="d", columns=columns)
    messages = []
    for number in range(events):
        lsn = 1_000 + number // EVENTS_PER_TRANSACTION
        if number % EVENTS_PER_TRANSACTION == 0:
            messages.append(struct.pack(">cQqI", b"B", lsn, number, lsn))
        if number == 0:
            messages.append(_relation(relation))
        messages.append(_event(number))
        if (number + 1) % EVENTS_PER_TRANSACTION == 0 or number + 1 == events:
            messages.append(struct.pack(">cBQQq", b"C", 0, lsn, lsn, number))
    return messages


def decode_columns(stream: list[bytes]) -> int:
    """Typed Arrow columns of every feed; gives the number of rows."""
    decoder, types, rows = PgOutputDecoder(), [resolve(column.type) for column in SCHEMA.columns], 0
    for start in range(0, len(stream), EVENTS_PER_FEED):
        for group in decoder.feed(stream[start : start + EVENTS_PER_FEED]).groups:
            columns = [parse_text(column.values, type_).values for column, type_ in zip(group.new, types, strict=True)]
            rows += pa.RecordBatch.from_arrays(columns, names=list(SCHEMA.names)).num_rows
    return rows


def decode_fields(stream: list[bytes], *, typed: bool) -> int:
    """The peer: a loop over messages and fields; to Python texts, or through Python values to the same Arrow types."""
    parsers = [PARSERS[column.type] for column in SCHEMA.columns]
    rows: list[Sequence[object]] = []
    done = 0
    for message in stream:
        if message[0] in b"IU":
            texts = _plain_tuple(message)
            rows.append([parse(text) for parse, text in zip(parsers, texts, strict=True)] if typed else texts)
            if typed and len(rows) == EVENTS_PER_FEED:
                done += _to_arrow(rows)
                rows = []
    return done + (_to_arrow(rows) if typed and rows else len(rows))


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS
    stream = synthetic_stream(events)
    size = sum(map(len, stream))
    print(f"{events:,} events, {len(SCHEMA.columns)} columns, {size / events:.0f} bytes each, best of {ROUNDS}")
    columns = _rate(events, lambda: decode_columns(stream))
    fields = _rate(events, lambda: decode_fields(stream, typed=True))
    texts = _rate(events, lambda: decode_fields(stream, typed=False))
    print(f"columns to typed Arrow          {columns:12,.0f} events/s")
    print(f"plain loop to typed Arrow       {fields:12,.0f} events/s   ratio {columns / fields:.1f}")
    print(f"plain loop to texts, no types   {texts:12,.0f} events/s   ratio {columns / texts:.1f}")


def _rate(events: int, decode: Callable[[], int]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        rows = decode()
        best = min(best, time.perf_counter() - start)
        if rows != events:
            message = f"{rows} rows decoded of {events}"
            raise ValueError(message)
    return events / best


def _to_arrow(rows: list[Sequence[object]]) -> int:
    columns = [
        pa.array(column, field.type)
        for column, field in zip(zip(*rows, strict=True), arrow_schema(SCHEMA), strict=True)
    ]
    return len(columns[0])


def _plain_tuple(message: bytes) -> list[str]:
    (count,) = struct.unpack_from(">H", message, 6)
    place, texts = 8, []
    for _ in range(count):
        (length,) = struct.unpack_from(">I", message, place + 1)
        place += 5
        texts.append(message[place : place + length].decode())
        place += length
    return texts


def _relation(relation: Relation) -> bytes:
    columns = b"".join(
        bytes([column.is_key]) + column.name.encode() + b"\0" + struct.pack(">Ii", column.type_oid, column.modifier)
        for column in relation.columns
    )
    names = f"{relation.namespace}\0{relation.name}\0{relation.replica_identity}".encode()
    return struct.pack(">cI", b"R", relation.oid) + names + struct.pack(">H", len(relation.columns)) + columns


def _event(number: int) -> bytes:
    moment = datetime.fromtimestamp(1_700_000_000 + number / 1_000, UTC)
    stamp = f"{moment:%Y-%m-%d %H:%M:%S}.{number % 1_000:03d}+00"
    texts = (
        str(number),
        str(number % 50_000),
        ("new", "paid", "shipped", "returned")[number % 4],
        f"{number % 100_000}.{number % 100:02d}",
        "ft"[number % 2],
        f"{moment:%Y-%m-%d}",
        stamp,
        stamp,
        f"{number / 7:.6f}",
        f"a note of some length about order {number}",
    )
    fields = b"".join(b"t" + struct.pack(">I", len(text)) + text.encode() for text in texts)
    kind = b"U" if number % 5 < 3 else b"I"
    return struct.pack(">cIcH", kind, OID, b"N", len(texts)) + fields


if __name__ == "__main__":
    main()
