"""Slice files, and what a disk, a bucket or a person can make of one; reproducible from a seed."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_pipeline.record import COMMIT_TIME, OPERATION, VERSION, Column, TableSchema, encode_version
from cdc_pipeline.slice_file import event_schema, write_slice_file

MAGIC = b"PAR1"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a mutant may be made of: slice files of one table, and files that are no slices of it."""

    originals: tuple[bytes, ...]
    others: tuple[bytes, ...]


Mutation = Callable[[Random, bytes, World], bytes]


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


def new_world() -> World:
    sizes = (1, 3, 40, 40, 500, 2_000)
    return World(
        originals=tuple(slice_content(TEXTS, rows, 10_000 * number) for number, rows in enumerate(sizes)),
        others=(slice_content(NARROW, 40), slice_content(RETYPED, 40), *foreign_files(), bomb(40, 1 << 20)),
    )


def foreign_files() -> tuple[bytes, ...]:
    """Whole Parquet files with other columns than a slice file of TEXTS."""
    plain = pa.table({"id": [1, 2, 3], "note": ["a", "b", "c"]})
    wide = pa.table({f"c{number}": [1] for number in range(300)})
    return parquet(plain), parquet(wide)


def bomb(rows: int, unpacked_bytes: int) -> bytes:
    """A file with the columns and rows of a slice; one text is large and packs into almost nothing."""
    fields = event_schema(TEXTS)
    table = pq.read_table(pa.BufferReader(slice_content(TEXTS, rows)))
    texts = pa.array(["x" * unpacked_bytes, *[""] * (rows - 1)])
    table = table.set_column(fields.get_field_index("note"), "note", texts).cast(fields)
    return parquet(table, compression="zstd", store_schema=False, use_dictionary=False)


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def bits(random: Random, of: bytes, _world: World) -> bytes:
    """Up to three bits flipped, each at a place of its own."""
    changed = bytearray(of)
    for place in random.sample(range(len(of)), random.randint(1, 3)):
        changed[place] ^= 1 << random.randrange(8)
    return bytes(changed)


def truncated(random: Random, of: bytes, _world: World) -> bytes:
    """Also with the tail that a whole file has."""
    kept = of[: random.randrange(len(of) - 8)]
    return kept + of[-8:] if random.random() < 0.3 else kept


def extended(random: Random, of: bytes, _world: World) -> bytes:
    more = random.choice([random.randbytes(random.randint(1, 500)), bytes(random.randint(1, 500)), of])
    place = random.choice([len(of), len(of) - 8, 4])
    return of[:place] + more + of[place:]


def swapped(random: Random, of: bytes, world: World) -> bytes:
    return random.choice([other for other in (*world.originals, *world.others) if other != of])


def no_content(random: Random, of: bytes, _world: World) -> bytes:
    size = len(of)
    return random.choice([b"", MAGIC, MAGIC * 2, MAGIC + bytes(4) + MAGIC, bytes(size), random.randbytes(size)])


MUTATIONS: tuple[Mutation, ...] = (bits, truncated, extended, swapped, no_content)
