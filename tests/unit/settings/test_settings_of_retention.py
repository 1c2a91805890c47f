"""What is kept for how long: the section `keep` of pipeline.yml."""

from datetime import timedelta

import pytest

from tests.support.settings_texts import WHOLE, parsed, refusal


def test_without_a_word_slices_are_kept_as_long_as_a_rewind_reaches_and_histories_for_a_month() -> None:
    keep = parsed().keep
    assert (keep.slices, keep.snapshots) == (timedelta(days=7), timedelta(days=7))
    assert (keep.history, keep.quarantine) == (timedelta(days=30), timedelta(days=30))


def test_each_age_can_be_set_in_the_file_and_by_the_environment() -> None:
    keep = parsed(f"{WHOLE}keep: {{slices: 2d, history: 90d}}\n", {"CDC_KEEP__QUARANTINE": "3d"}).keep
    assert (keep.slices, keep.history, keep.quarantine) == (timedelta(days=2), timedelta(days=90), timedelta(days=3))


@pytest.mark.parametrize("name", ["slices", "snapshots", "history", "quarantine"])
def test_less_than_a_day_is_refused_with_its_line(name: str) -> None:
    message = refusal(f"{WHOLE}keep: {{{name}: 23h}}\n")
    assert f"line 10: keep.{name}" in message
    assert "write at least 1d" in message


@pytest.mark.parametrize("name", ["slices", "snapshots", "history", "quarantine"])
def test_more_than_a_century_is_refused_with_its_line(name: str) -> None:
    message = refusal(f"{WHOLE}keep: {{{name}: 999999d}}\n")
    assert f"line 10: keep.{name}" in message
    assert "write at most 36500d" in message


def test_what_nobody_can_keep_is_refused_with_what_is_known() -> None:
    assert "the key 'keep.slice' is unknown; did you mean 'slices'?" in refusal(f"{WHOLE}keep: {{slice: 7d}}\n")
