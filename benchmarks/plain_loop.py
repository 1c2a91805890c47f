"""The peer of the consumer: a loop over messages and fields that makes a Python object of each, then Arrow columns."""

import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa

from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.types import arrow_schema

EVENT_KINDS = b"IU"
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


class PlainLoop:
    """Typed batches of a fixed number of inserts and updates, as they come."""

    def __init__(self, rows_per_batch: int) -> None:
        self._rows_per_batch = rows_per_batch
        self._parsers = [PARSERS[column.type] for column in SCHEMA.columns]
        self._rows: list[Sequence[object]] = []

    def take(self, message: bytes) -> pa.RecordBatch | None:
        """The batch that this message fills, if it does."""
        if message[0] in EVENT_KINDS:
            texts = plain_tuple(message)
            self._rows.append([parse(text) for parse, text in zip(self._parsers, texts, strict=True)])
        return self.rest() if len(self._rows) == self._rows_per_batch else None

    def rest(self) -> pa.RecordBatch:
        rows, self._rows = self._rows, []
        schema = arrow_schema(SCHEMA)
        columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def plain_tuple(message: bytes) -> list[str]:
    """Texts of the new row of an insert or update without its old key, none of them NULL."""
    (count,) = struct.unpack_from(">H", message, 6)
    place, texts = 8, []
    for _ in range(count):
        (length,) = struct.unpack_from(">I", message, place + 1)
        place += 5
        texts.append(message[place : place + length].decode())
        place += length
    return texts
