"""The stream partition of an id is the same on every machine and in every release."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.sources.table_events import stable_hash, stream_partition

TEXTS = st.none() | st.text(max_size=12)
IDS = st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[TEXTS] * width), min_size=1, max_size=20))
WRAP = 2**64


def plain_hash(id_texts: tuple[str | None, ...]) -> int:
    """FNV-1a of 64 bits, byte by byte; each column ends with the byte 0x1F."""
    digest = 0xCBF29CE484222325
    for text in id_texts:
        for byte in [*(text or "").encode(), 0x1F]:
            digest = (digest ^ byte) * 0x100000001B3 % WRAP
    return digest


def columns(ids: list[tuple[str | None, ...]]) -> list[pa.Array]:
    return [pa.array(column, type=pa.string()) for column in zip(*ids, strict=True)]


@given(IDS)
def test_the_hash_of_whole_columns_equals_the_plain_one(ids: list[tuple[str | None, ...]]) -> None:
    assert stable_hash(columns(ids)).tolist() == [plain_hash(id_texts) for id_texts in ids]


@given(IDS, st.integers(0, 5), st.integers(1, 64))
def test_a_part_of_a_column_hashes_like_the_whole(
    ids: list[tuple[str | None, ...]], offset: int, partitions: int
) -> None:
    whole = stream_partition(columns(ids), partitions).tolist()
    assert stream_partition([column.slice(offset) for column in columns(ids)], partitions).tolist() == whole[offset:]
    assert all(0 <= number < partitions for number in whole)


@pytest.mark.parametrize(
    ("id_texts", "expected"),
    [
        (("1",), 0x07F8A907B4BA2FB9),
        (("order-1000",), 0x619B626756FBDC60),
        (("7", "3"), 0xFD886FE0F88B2E35),
        (("é",), 0x5FEB401C1DFB2CFA),
        ((None,), 0xAF63D24C8601DB8E),
    ],
)
def test_the_hash_never_changes(id_texts: tuple[str | None, ...], expected: int) -> None:
    assert int(stable_hash(columns([id_texts]))[0]) == expected


def test_the_border_between_columns_counts() -> None:
    first, second = stable_hash(columns([("ab", "c"), ("a", "bc")]))
    assert first != second


def test_no_ids_have_no_partitions() -> None:
    assert stream_partition([pa.array([], type=pa.string())], 4).tolist() == []
