"""A slice file: sorted, typed, checked page by page, the same bytes for the same events."""

from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.record import (
    ABSENT,
    COMMIT_TIME,
    OPERATION,
    TRANSACTION,
    VERSION,
    Column,
    TableSchema,
    encode_version,
)
from cdc_pipeline.slice_file import MOST_KEY_RANGES, event_schema, key_ranges, write_slice_file

SCHEMA = TableSchema(columns=(Column(name="id", type="int8"), Column(name="note", type="text")), key=("id",))
BY_NOTE = TableSchema(columns=SCHEMA.columns, key=("note",))
IDS = st.integers(-(2**63), 2**63 - 1)
EVENTS = st.lists(st.tuples(st.sampled_from("iudm"), st.integers(0, 50), st.none() | st.text(max_size=5)), min_size=1)
Event = tuple[str, int | None, str | None]
STORABLE = st.characters(exclude_characters="\0", codec="utf-8")


def rows_of(events: list[Event], schema: TableSchema = SCHEMA) -> pa.Table:
    """In stream order; every second event is partial."""
    count = len(events)
    columns: dict[str, list[Any]] = {
        OPERATION: [operation for operation, _, _ in events],
        VERSION: [encode_version(100 + number, 1) for number in range(count)],
        COMMIT_TIME: [datetime(2024, 1, 1, tzinfo=UTC)] * count,
        TRANSACTION: list(range(count)),
        ABSENT: [["note"] if number % 2 else None for number in range(count)],
        "id": [id_ for _, id_, _ in events],
        "note": [note for _, _, note in events],
    }
    fields = event_schema(schema)
    return pa.table(
        [pa.array(columns.get(field.name, [None] * count), type=field.type) for field in fields], schema=fields
    )


def read(content: bytes) -> pa.Table:
    return pq.read_table(pa.BufferReader(content), page_checksum_verification=True)


@given(EVENTS)
def test_a_slice_file_holds_its_events_sorted_by_id_then_version(events: list[Event]) -> None:
    rows = rows_of(events)
    file = write_slice_file(rows, SCHEMA)
    found = read(file.content)
    assert found.to_pylist() == sorted(rows.to_pylist(), key=lambda row: (row["id"], row[VERSION]))
    assert found.column_names == event_schema(SCHEMA).names
    assert [field.type for field in found.schema] == [field.type for field in event_schema(SCHEMA)]
    assert file.rows == len(events)
    assert file.partial_rows == len(events) // 2
    assert file.key_changes == sum(operation == "m" for operation, _, _ in events)
    assert file.truncates == 0


def test_the_name_of_an_id_may_begin_with_a_dot() -> None:
    schema = TableSchema(columns=(Column(name=".id", type="int8"),), key=(".id",))
    rows = rows_of([("i", None, None)] * 3, schema).set_column(6, event_schema(schema).field(".id"), [[3, 1, 2]])
    assert read(write_slice_file(rows, schema).content)[".id"].to_pylist() == [1, 2, 3]


@given(EVENTS)
def test_the_same_events_give_the_same_bytes(events: list[Event]) -> None:
    first, second = (write_slice_file(rows_of(events), SCHEMA) for _ in range(2))
    assert first == second
    chunked = pa.concat_tables([rows_of(events).slice(0, 1), rows_of(events).slice(1)])
    assert write_slice_file(chunked, SCHEMA).content == first.content


def test_a_truncate_has_no_id_and_is_counted() -> None:
    file = write_slice_file(rows_of([("t", None, None)]), SCHEMA)
    assert (file.rows, file.truncates, file.key_ranges) == (1, 1, ())


def test_a_flipped_bit_in_any_page_is_found_when_the_file_is_read() -> None:
    content = write_slice_file(rows_of([("i", number, f"note {number}") for number in range(500)]), SCHEMA).content
    group = pq.read_metadata(pa.BufferReader(content)).row_group(0)
    for column in map(group.column, range(group.num_columns)):
        first = column.dictionary_page_offset or column.data_page_offset
        damaged = bytearray(content)
        damaged[first + column.total_compressed_size - 1] ^= 1
        with pytest.raises(OSError, match="CRC checksum verification failed"):
            read(bytes(damaged))


def test_statistics_and_compression_are_written_for_every_column() -> None:
    content = write_slice_file(rows_of([("i", number, "a") for number in range(10)]), SCHEMA).content
    group = pq.read_metadata(pa.BufferReader(content)).row_group(0)
    for index in range(group.num_columns):
        assert group.column(index).is_stats_set
        assert group.column(index).compression == "ZSTD"
    by_path = {group.column(index).path_in_schema: group.column(index).statistics for index in range(group.num_columns)}
    assert (by_path["id"].min, by_path["id"].max) == (0, 9)


@given(st.lists(IDS, min_size=1))
def test_a_few_key_ranges_hold_every_id(ids: list[int]) -> None:
    ranges = key_ranges(pa.chunked_array([sorted(ids)], type=pa.int64()))
    assert 1 <= len(ranges) <= MOST_KEY_RANGES
    assert all(any(low <= id_ <= high for low, high in ranges) for id_ in ids)
    assert all(low in ids and high in ids for low, high in ranges)
    assert all(earlier[1] < later[0] for earlier, later in pairwise(ranges))


def test_key_ranges_are_cut_at_the_widest_gaps() -> None:
    ids = [1, 2, 3, 1000, 1001, 50_000]
    assert key_ranges(pa.chunked_array([ids])) == ((1, 3), (1000, 1001), (50_000, 50_000))
    assert key_ranges(pa.chunked_array([[1, 2, 3]])) == ((1, 3),)


@given(st.lists(IDS, min_size=1))
def test_decimals_without_places_have_the_ranges_of_whole_numbers(ids: list[int]) -> None:
    whole = key_ranges(pa.chunked_array([ids], type=pa.int64()))
    for type_ in (pa.decimal128(20, 0), pa.decimal128(38, 0)):
        assert key_ranges(pa.chunked_array([[*map(Decimal, ids), None]], type=type_)) == whole


@pytest.mark.parametrize(("id_", "type_"), [(2**63, pa.decimal128(20, 0)), (-(10**37), pa.decimal128(38, 0))])
def test_decimals_beyond_64_bits_or_with_places_have_no_range(id_: int, type_: pa.DataType) -> None:
    assert key_ranges(pa.chunked_array([[Decimal(1), Decimal(id_)]], type=type_)) == ()
    assert key_ranges(pa.chunked_array([[Decimal(1)]], type=pa.decimal128(9, 2))) == ()


@given(st.lists(st.text(STORABLE), min_size=1))
def test_texts_have_one_range(ids: list[str]) -> None:
    in_order = pa.array(ids).sort()
    assert key_ranges(pa.chunked_array([in_order])) == ((in_order[0].as_py(), in_order[-1].as_py()),)


@pytest.mark.parametrize("type_", [pa.float64(), pa.date32(), pa.binary()])
def test_ids_without_a_usable_order_have_no_range(type_: pa.DataType) -> None:
    assert key_ranges(pa.chunked_array([pa.nulls(0, type_)])) == ()
    assert key_ranges(pa.chunked_array([[1.5]], type=pa.float64())) == ()


@pytest.mark.parametrize("text", ["a\0b", "a" * 1_001])
def test_texts_that_the_metadata_store_would_not_take_have_no_range(text: str) -> None:
    assert key_ranges(pa.chunked_array([["a", text]])) == ()


@given(st.lists(st.text(STORABLE, max_size=4), min_size=1))
def test_key_ranges_of_a_file_hold_every_id_of_it(notes: list[str]) -> None:
    file = write_slice_file(rows_of([("i", 1, note) for note in notes], BY_NOTE), BY_NOTE)
    ((low, high),) = file.key_ranges
    assert all(low.encode() <= note.encode() <= high.encode() for note in notes)
