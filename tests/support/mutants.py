"""Slice files with everything wrong that a disk, a bucket or a person can do to them; reproducible from a seed."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_pipeline.parquet_layout import MAGIC, Page, pages, read_footer
from cdc_pipeline.record import COMMIT_TIME, OPERATION, VERSION, Column, TableSchema, encode_version
from cdc_pipeline.slice_file import event_schema, write_slice_file

TEXTS = TableSchema(
    columns=(
        Column(name="id", type="int8"),
        Column(name="note", type="text"),
        Column(name="price", type="numeric(10,2)"),
        Column(name="open", type="boolean"),
    ),
    key=("id",),
)
NARROW = TableSchema(columns=TEXTS.columns[:2], key=("id",))
RETYPED = TableSchema(columns=(TEXTS.columns[0], Column(name="note", type="int4"), *TEXTS.columns[2:]), key=("id",))
BOMB_BYTES = 40 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A slice file as it was registered, with the pages that it has."""

    content: bytes
    rows: int
    footer_start: int
    pages: tuple[tuple[int, Page], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a mutant may be made of: whole slice files of the same table, and files that are no slices of it."""

    originals: tuple[Original, ...]
    older: tuple[bytes, ...]
    foreign: tuple[bytes, ...]
    bombs: tuple[bytes, ...]


Mutation = Callable[[Random, Original, World], bytes]


def slice_content(schema: TableSchema, rows: int, first: int = 0) -> bytes:
    numbers = range(first, first + rows)
    columns: dict[str, list[Any]] = {
        OPERATION: ["u" if number % 3 else "i" for number in numbers],
        VERSION: [encode_version(100 + number, 1) for number in numbers],
        COMMIT_TIME: [datetime(2024, 1, 1, tzinfo=UTC)] * rows,
        "id": [number * 7919 % 100_003 for number in numbers],
        "note": [f"note {number % 97} of {number}" for number in numbers],
        "open": [number % 2 == 0 for number in numbers],
    }
    fields = event_schema(schema)
    if pa.types.is_integer(fields.field("note").type):
        columns["note"] = list(numbers)
    arrays = [pa.array(columns.get(field.name, [None] * rows), type=field.type) for field in fields]
    return write_slice_file(pa.table(arrays, schema=fields), schema).content


def original(content: bytes) -> Original:
    footer, headers, place = read_footer(content), list[tuple[int, Page]](), len(MAGIC)
    for page in pages(content, place, footer.start):
        headers.append((place, page))
        place = page.end
    return Original(content=content, rows=footer.rows, footer_start=footer.start, pages=tuple(headers))


def new_world() -> World:
    sizes = (1, 3, 40, 40, 500, 2_000)
    return World(
        originals=tuple(original(slice_content(TEXTS, rows, 10_000 * place)) for place, rows in enumerate(sizes)),
        older=(slice_content(NARROW, 40), slice_content(RETYPED, 40), slice_content(TEXTS, 39)),
        foreign=tuple(_foreign()),
        bombs=(_bomb(40, BOMB_BYTES), _bomb(3, BOMB_BYTES), _bomb(500, BOMB_BYTES)),
    )


def _foreign() -> list[bytes]:
    plain = pa.table({"id": [1, 2, 3], "note": ["a", "b", "c"]})
    ours = pq.read_table(pa.BufferReader(slice_content(TEXTS, 40)))
    wide = pa.table({f"c{number}": [1] for number in range(300)})
    return [
        _written(plain),
        _written(ours, compression="snappy", write_page_checksum=True, store_schema=False),
        _written(ours, compression="zstd", write_page_checksum=False, store_schema=False),
        _written(ours, compression="zstd", write_page_checksum=True, store_schema=True),
        _written(ours, compression="zstd", write_page_checksum=True, store_schema=False, data_page_version="2.0"),
        _written(wide),
        b'{"id": 1}\n',
    ]


def _bomb(rows: int, unpacked_bytes: int) -> bytes:
    """The very columns and row count of a slice; one text is large and packs into almost nothing."""
    fields = event_schema(TEXTS)
    table = pq.read_table(pa.BufferReader(slice_content(TEXTS, rows)))
    texts = pa.array(["x" * unpacked_bytes, *[""] * (rows - 1)])
    table = table.set_column(fields.get_field_index("note"), "note", texts).cast(fields)
    return _written(table, compression="zstd", write_page_checksum=True, store_schema=False, use_dictionary=False)


def _written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def _flip(random: Random, content: bytes, first: int, end: int) -> bytes:
    changed = bytearray(content)
    changed[random.randrange(first, end)] ^= 1 << random.randrange(8)
    return bytes(changed)


def bit(random: Random, of: Original, _world: World) -> bytes:
    return _flip(random, of.content, 0, len(of.content))


def bits(random: Random, of: Original, _world: World) -> bytes:
    content = of.content
    for _ in range(random.randint(2, 8)):
        content = _flip(random, content, 0, len(content))
    return content


def packed_content(random: Random, of: Original, _world: World) -> bytes:
    _, page = random.choice(of.pages)
    return _flip(random, of.content, page.start, page.end)


def page_header(random: Random, of: Original, _world: World) -> bytes:
    begins, page = random.choice(of.pages)
    return _flip(random, of.content, begins, page.start)


def value_count(random: Random, of: Original, _world: World) -> bytes:
    """Another number of values in a page's header, of the same length."""
    begins, page = random.choice(of.pages)
    header, written = of.content[begins : page.start], _number(page.values)
    forged = bytearray(written)
    while forged == written:
        forged = bytearray(random.choice([0x80, 0xFE]) | random.randrange(128) for _ in written)
        forged[-1] &= 0x7F
    place = begins + header.rindex(b"\x15" + written) + 1
    return of.content[:place] + bytes(forged) + of.content[place + len(written) :]


def footer(random: Random, of: Original, _world: World) -> bytes:
    return _flip(random, of.content, of.footer_start, len(of.content))


def truncated(random: Random, of: Original, _world: World) -> bytes:
    """Also with the tail that a whole file has."""
    kept = of.content[: random.randrange(len(of.content))]
    return kept + of.content[-8:] if random.random() < 0.3 else kept


def extended(random: Random, of: Original, world: World) -> bytes:
    more = random.choice([random.randbytes(random.randint(1, 500)), bytes(random.randint(1, 500)), of.content])
    place = random.choice([len(of.content), len(of.content) - 8, of.footer_start, 4])
    return of.content[:place] + more + of.content[place:]


def swapped(random: Random, of: Original, world: World) -> bytes:
    return random.choice([other.content for other in world.originals if other.content != of.content])


def older(random: Random, _of: Original, world: World) -> bytes:
    return random.choice(world.older)


def foreign(random: Random, _of: Original, world: World) -> bytes:
    return random.choice(world.foreign)


def no_content(random: Random, of: Original, _world: World) -> bytes:
    size = len(of.content)
    return random.choice([b"", MAGIC, MAGIC * 2, MAGIC + bytes(4) + MAGIC, bytes(size), random.randbytes(size)])


def bomb(random: Random, _of: Original, world: World) -> bytes:
    return random.choice(world.bombs)


def _number(value: int) -> bytes:
    """As Thrift writes it: zigzag, seven bits a byte."""
    value, written = value * 2, bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


MUTATIONS: tuple[Mutation, ...] = (
    bit,
    bits,
    packed_content,
    page_header,
    value_count,
    footer,
    truncated,
    extended,
    swapped,
    older,
    foreign,
    no_content,
    bomb,
)
