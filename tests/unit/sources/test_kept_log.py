"""When the log that a slot keeps back is an alarm, and how it is said."""

import pytest

from cdc_pipeline.settings.postgres import PostgresSource
from cdc_pipeline.sources.known import shown_bytes
from cdc_pipeline.sources.postgres.slot import log_warning

SOURCE = PostgresSource(kind="postgres", slot="shop", log_alarm_bytes=1 << 30)
MB = 1 << 20


def warning(*, status: str = "reserved", retained: int, most: int | None = None, left: int | None = None) -> str | None:
    return log_warning(SOURCE, status=status, retained=retained, most=most, left=left)


def test_less_than_half_of_what_the_server_allows_is_no_alarm() -> None:
    assert warning(retained=40 * MB, most=100 * MB, left=60 * MB) is None


def test_more_than_half_is_an_alarm_that_says_how_much_is_left_and_what_to_do() -> None:
    words = warning(status="extended", retained=60 * MB, most=100 * MB, left=40 * MB)
    assert words == (
        "the slot shop keeps back 60.0 MB of the source's log; it is lost when 40.0 MB more are written:"
        " start the consumer, or raise max_slot_wal_keep_size"
    )


def test_a_slot_beyond_its_limit_and_a_lost_one_are_alarms_however_much_they_keep() -> None:
    assert "lost when 0 bytes more" in str(warning(status="unreserved", retained=MB, most=MB, left=-MB))
    assert warning(status="lost", retained=0) == "the slot shop has lost its log"


def test_where_the_server_sets_no_limit_pipeline_yml_does() -> None:
    assert warning(retained=1 << 30) is None
    assert "more than source.log_alarm_bytes" in str(warning(retained=(1 << 30) + 1))


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KB"), (3 << 29, "1.5 GB"), (1 << 52, "4096.0 TB")],
)
def test_bytes_are_said_in_the_largest_unit_that_fits(count: int, words: str) -> None:
    assert shown_bytes(count) == words
