"""Statistics of rounds."""

import pytest

from benchmarks.figures import Sample, drift, figures_of, slope, spread_of, times_as_long


def sample(seconds: float, rows: int = 100, **processor: float) -> Sample:
    peaks = {owner: int(used * 1e6) for owner, used in processor.items()}
    return Sample(rows=rows, wall_seconds=seconds, processor_seconds=processor, peak_bytes=peaks)


def test_a_spread_has_the_median_both_ends_and_the_deviation_that_one_odd_round_does_not_move() -> None:
    found = spread_of([1.0, 1.2, 0.9, 1.1, 50.0])
    assert (found.median, found.least, found.most) == (1.1, 0.9, 50.0)
    assert found.deviation == pytest.approx(0.1)


def test_no_rounds_have_no_spread() -> None:
    with pytest.raises(ValueError, match="no values"):
        spread_of([])


def test_figures_hold_the_median_rate_and_what_each_process_took() -> None:
    found = figures_of([sample(2.0, client=1.0, spark=3.0), sample(1.0, client=2.0), sample(4.0, client=3.0)])
    assert (found.rounds, found.rows, found.rows_per_second) == (3, 100, 50.0)
    assert found.processor_seconds.median == 3.0
    assert found.processor_seconds_of == {"client": 2.0, "spark": 0.0}
    assert found.peak_bytes == {"client": 3_000_000, "spark": 3_000_000}
    assert found.processor_seconds_per_million == 30_000
    assert found.walls == (2.0, 1.0, 4.0)


def test_arms_with_other_numbers_of_rows_are_compared_by_the_row() -> None:
    assert times_as_long(figures_of([sample(4.0, rows=100)]), figures_of([sample(1.0, rows=50)])) == 2.0


@pytest.mark.parametrize(("exponent", "expected"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_a_slope_is_the_exponent_of_the_growth(exponent: float, expected: float) -> None:
    points = [(float(size), 3.0 * size**exponent) for size in (1_000, 30_000, 1_000_000)]
    assert slope(points) == pytest.approx(expected)


def test_one_size_has_no_slope() -> None:
    with pytest.raises(ValueError, match="two different sizes"):
        slope([(10.0, 1.0), (10.0, 2.0)])


def test_drift_compares_the_last_tenth_with_the_first() -> None:
    assert drift([1.0] * 10 + [7.0] * 80 + [1.5] * 10) == 1.5
    assert drift([2.0]) == 1.0
