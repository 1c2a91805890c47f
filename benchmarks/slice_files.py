"""Slices of made-up changes, column by column: ten thousand of them cost some milliseconds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.areas import slice_key
from cdc_pipeline.lake.key_ranges import joined
from cdc_pipeline.lake.protocol import ClaimWork, KeyRange, SliceInput
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import COMMIT_TIME, OPERATION, TRANSACTION, VERSION, Column, TableName, TableSchema
from cdc_pipeline.slice_file import MOST_KEY_RANGES, event_schema, write_slice_file

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
Pattern = Literal["hot", "zipf", "uniform"]
PATTERNS: tuple[Pattern, ...] = ("hot", "zipf", "uniform")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = TableSchema(
    columns=(
        Column(name="id", type="int8"),
        Column(name="customer", type="int4"),
        Column(name="note", type="text"),
        Column(name="amount", type="int8"),
        Column(name="at", type="timestamptz"),
    ),
    key=("id",),
)
_NEW_IN = 10
"""Every tenth change is an insert of the next id."""
_SCATTER = 2_654_435_761
"""Odd and large: the most frequent ids lie all over the table, as in YCSB's scrambled zipf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeSlice:
    """A slice file in the object store, and its events as Arrow."""

    content: SliceInput
    key_ranges: tuple[KeyRange, ...]
    events: pa.Table
    partial_rows: int


@dataclass(kw_only=True)
class SliceMaker:
    """Puts slices into the object store and numbers them, as the consumer does. `rows`: those of the table.

    hot: the last ids, twice as many as changes; zipf: exponent 1, scattered over all ids; uniform: all ids alike.
    """

    objects: ObjectStore
    rows: int
    pattern: Pattern
    chance: np.random.Generator
    schema: TableSchema = SCHEMA
    table: TableName = field(default_factory=lambda: TableName.parse("bench.public.changes"))
    next_number: int = 1
    made_changes: int = 0

    def make(self, changes: int) -> MadeSlice:
        numbers = np.arange(self.made_changes + 1, self.made_changes + changes + 1)
        is_new = (numbers - 1) % _NEW_IN == 0
        ids = np.where(is_new, self.rows + 1 + (numbers - 1) // _NEW_IN, self._old_ids(changes))
        known = {OPERATION, VERSION, COMMIT_TIME, TRANSACTION}
        events = pa.Table.from_pydict(
            {
                OPERATION: pa.array(np.where(is_new, "i", "u"), pa.string()),
                VERSION: pa.array([f"{number:016x}-00000001" for number in numbers], pa.string()),
                COMMIT_TIME: pa.array([NOW] * changes, pa.timestamp("us", "UTC")),
                TRANSACTION: pa.array(numbers, pa.int64()),
            }
            | {each.name: pa.nulls(changes, each.type) for each in event_schema(self.schema) if each.name not in known}
            | self.values(ids, numbers, is_new),
        )
        events = events.select(event_schema(self.schema).names).cast(event_schema(self.schema))
        file = write_slice_file(events, self.schema)
        key = slice_key(self.table, 0, f"{self.next_number:08d}-{file.sha256[:16]}.parquet")
        self.objects.put_if_absent(key, file.content)
        content = SliceInput(
            number=self.next_number,
            slice_id=f"slice-{self.next_number}",
            key=key,
            rows=changes,
            sha256=file.sha256,
            schema=self.schema,
        )
        self.next_number += 1
        self.made_changes += changes
        ranges = tuple(KeyRange(*span) for span in file.key_ranges)
        return MadeSlice(content=content, key_ranges=ranges, events=events, partial_rows=file.partial_rows)

    def values(self, ids: Integers, numbers: Integers, _is_new: Flags) -> dict[str, pa.Array]:
        """The values of the changes, by column. `_is_new`: which of them are inserts."""
        return values_of(pa.array(ids), pa.array(numbers))

    def _old_ids(self, changes: int) -> Integers:
        match self.pattern:
            case "hot":
                return self.rows - self.chance.integers(0, min(self.rows, 2 * changes), changes)
            case "zipf":
                ranks = np.floor(self.rows ** self.chance.random(changes)).astype(np.int64)
                return ranks * _SCATTER % self.rows + 1
            case "uniform":
                return self.chance.integers(1, self.rows + 1, changes)


def values_of(ids: pa.Array, numbers: pa.Array) -> dict[str, pa.Array]:
    texts = pc.binary_join_element_wise("note", pc.cast(numbers, pa.string()), "", " ")
    customers = np.asarray(ids) % 1_000
    return {
        "id": ids,
        "customer": pa.array(customers, pa.int32()),
        "note": pc.binary_repeat(texts, 8),
        "amount": numbers,
        "at": pa.array([NOW] * len(ids), pa.timestamp("us", "UTC")),
    }


def claim_work(slices: Sequence[MadeSlice]) -> ClaimWork:
    """One claim of these slices, as `slice_to_lake` describes it to the lake."""
    ranges = joined((low, high) for made in slices for low, high in made.key_ranges)
    if len(ranges) > MOST_KEY_RANGES:
        ranges = [ranges[0], (ranges[1][0], ranges[-1][1])]
    first, last = slices[0].content.number, slices[-1].content.number
    return ClaimWork(
        claim_id=f"claim-{first}-{last}",
        first_number=first,
        last_number=last,
        slices=tuple(made.content for made in slices),
        partial_rows=sum(made.partial_rows for made in slices),
        key_ranges=tuple(KeyRange(*span) for span in ranges),
    )
