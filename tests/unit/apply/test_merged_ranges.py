"""The key ranges of a claim hold those of all its slices, and are few."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.apply.next_move import merged_ranges
from cdc_pipeline.slice_file import MOST_KEY_RANGES
from tests.support.slice_rows import slice_row

BOUNDS = st.integers(-(2**63), 2**63 - 1)
RANGES = st.tuples(BOUNDS, BOUNDS).map(lambda pair: (min(pair), max(pair)))
SLICES = st.lists(st.lists(RANGES, min_size=1, max_size=MOST_KEY_RANGES).map(tuple), min_size=1)
TEXT_RANGES = st.tuples(st.text(max_size=3), st.text(max_size=3)).map(lambda pair: (min(pair), max(pair)))


@given(SLICES)
def test_few_ranges_hold_the_ranges_of_all_slices(slices: list[tuple[tuple[int, int], ...]]) -> None:
    merged = merged_ranges([replace(slice_row(number), key_ranges=found) for number, found in enumerate(slices)])
    assert 1 <= len(merged) <= MOST_KEY_RANGES
    assert list(merged) == sorted(merged)
    spans = [span for found in slices for span in found]
    assert all(any(int(each.low) <= low and high <= int(each.high) for each in merged) for low, high in spans)
    assert {bound for each in merged for bound in each} <= {bound for span in spans for bound in span}


@given(st.lists(TEXT_RANGES, min_size=1))
def test_ranges_of_texts_are_held_too(spans: list[tuple[str, str]]) -> None:
    merged = merged_ranges([replace(slice_row(number), key_ranges=(span,)) for number, span in enumerate(spans)])
    assert 1 <= len(merged) <= MOST_KEY_RANGES
    assert all(any(str(each.low) <= low and high <= str(each.high) for each in merged) for low, high in spans)


def test_the_widest_gaps_stay_open() -> None:
    spans = tuple((1000 * number + part, 1000 * number + part) for number in range(8) for part in (0, 5))
    merged = merged_ranges([replace(slice_row(1), key_ranges=spans)])
    assert [tuple(each) for each in merged] == [(1000 * number, 1000 * number + 5) for number in range(8)]


def test_a_slice_of_unknown_range_makes_the_whole_claim_unknown() -> None:
    known = replace(slice_row(1), key_ranges=((1, 2),))
    assert merged_ranges([known, slice_row(2)]) == ()


def test_ids_whose_type_changed_have_no_range_in_common() -> None:
    numbers, texts = replace(slice_row(1), key_ranges=((1, 2),)), replace(slice_row(2), key_ranges=(("a", "b"),))
    assert merged_ranges([numbers, texts]) == ()


def test_an_empty_slice_takes_no_part() -> None:
    known = replace(slice_row(1), key_ranges=((1, 2),))
    assert [tuple(each) for each in merged_ranges([known, slice_row(2, rows=0)])] == [(1, 2)]
    assert merged_ranges([slice_row(2, rows=0)]) == ()


def test_thousands_of_scattered_ranges_become_few() -> None:
    spans = tuple((number * number * 10, number * number * 10) for number in range(8_000))
    merged = merged_ranges([replace(slice_row(1), key_ranges=spans)])
    assert len(merged) == MOST_KEY_RANGES
    assert [tuple(each) for each in merged[1:]] == [tuple(span) for span in spans[-7:]]
