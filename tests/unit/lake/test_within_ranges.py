"""The ranges of a claim in SQL: they cover its ids, and neighbouring claims say the same."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.lake.lake_rows_sql import BLOCK, within_ranges
from cdc_pipeline.lake.protocol import KeyRange

LEAST, MOST = -(2**63), 2**63 - 1
IDS = st.integers(LEAST, MOST)
SPANS = st.lists(st.tuples(IDS, IDS).map(lambda ends: (min(ends), max(ends))), min_size=1, max_size=8)


def widened(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    sql = within_ranges("id", tuple(KeyRange(*span) for span in spans))
    found = re.findall(r"lake\.`id` BETWEEN (-?\d+) AND (-?\d+)", sql)
    return [(int(low), int(high)) for low, high in found]


@given(SPANS)
def test_numbers_are_covered_by_whole_blocks_apart_from_each_other_within_eight_bytes(
    spans: list[tuple[int, int]],
) -> None:
    found = widened(spans)
    assert all(any(low <= first and last <= high for low, high in found) for first, last in spans)
    assert all(low % BLOCK == 0 and (high + 1) % BLOCK == 0 for low, high in found)
    assert all(one[1] + 1 < other[0] for one, other in pairwise(found))
    assert LEAST <= found[0][0] <= found[-1][1] <= MOST
    assert sum(high - low + 1 for low, high in found) <= sum(last - first + 1 + 2 * BLOCK for first, last in spans)


@pytest.mark.parametrize("base", [0, -5 * BLOCK, 7_000 * BLOCK])
def test_claims_within_the_same_blocks_are_the_same_statement(base: int) -> None:
    first, second = [(base + 3, base + 90)], [(base + 7, base + 8), (base + 900, base + 1_000)]
    assert widened(first) == widened(second) == [(base, base + BLOCK - 1)]


def test_texts_are_left_as_they_are() -> None:
    assert within_ranges("id", (KeyRange("a", "b"), KeyRange("c", "c"))) == (
        "(lake.`id` BETWEEN 'a' AND 'b' OR lake.`id` BETWEEN 'c' AND 'c')"
    )
