"""Events per second of pgoutput -> typed Arrow columns, beside a plain decoder that makes a Python object per field."""

import struct
from datetime import UTC, datetime

import pyarrow as pa

from benchmarks.arms import Arm, Contest
from benchmarks.bench import OURS, Bench, plus
from benchmarks.plain_loop import EVENT_KINDS, SCHEMA, PlainLoop, plain_tuple
from benchmarks.results import RowFigures
from cdc_pipeline.sources.pgoutput.decoder import PgOutputDecoder
from cdc_pipeline.sources.pgoutput.messages import Relation, RelationColumn
from cdc_pipeline.types import parse_text, resolve

OID = 16_400
EVENTS_PER_TRANSACTION = 1_000
EVENTS_PER_FEED = 25_000
LOOP, TEXTS = "plain loop", "plain loop, texts alone"


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


def decode_fields(stream: list[bytes]) -> int:
    loop = PlainLoop(EVENTS_PER_FEED)
    batches = [batch for message in stream if (batch := loop.take(message)) is not None]
    return sum(batch.num_rows for batch in [*batches, loop.rest()])


def decode_texts(stream: list[bytes]) -> int:
    """The same loop without any type."""
    return len([plain_tuple(message) for message in stream if message[0] in EVENT_KINDS])


def measure(bench: Bench) -> RowFigures:
    sizes = bench.sizes("decoder")
    stream = synthetic_stream(sizes["events"])
    contest = Contest(
        name="decoder without a server",
        rows=sizes["events"],
        arms=(
            Arm(name=OURS, run=lambda: decode_columns(stream)),
            Arm(name=LOOP, run=lambda: decode_fields(stream)),
            Arm(name=TEXTS, run=lambda: decode_texts(stream)),
        ),
        parameters={"events": sizes["events"], "columns": len(SCHEMA.columns)},
    )
    found = bench.clockwork.measure(contest)
    values = plus({f"events/s over {peer}": found.speed(OURS, peer) for peer in (LOOP, TEXTS)})
    return RowFigures(contests=(found,), values=values, sizes=sizes)


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
