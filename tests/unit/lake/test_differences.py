"""Whether a comparison lists every row that differs."""

from cdc_pipeline.lake.differences import Comparison, Difference


def test_a_comparison_is_cut_when_more_rows_differ_than_it_lists() -> None:
    assert compared(differing=101, listed=100).is_cut
    assert not compared(differing=100, listed=100).is_cut


def test_a_comparison_that_lists_each_content_of_a_keyless_table_once_is_not_cut() -> None:
    assert not compared(differing=5, listed=1).is_cut


def compared(differing: int, listed: int) -> Comparison:
    differences = tuple(Difference(id={"id": number}, kind="extra", columns=()) for number in range(listed))
    return Comparison(source_rows=0, lake_rows=differing, differing_rows=differing, differences=differences)
