"""A process that cannot run is tried again for as long as it takes."""

from datetime import timedelta

from cdc_pipeline.launcher.supervisor import FIRST_PAUSE, LONGEST_PAUSE, pause_after


def test_the_pause_doubles_up_to_a_minute_and_stays_there() -> None:
    assert [pause_after(failures) for failures in range(3)] == [FIRST_PAUSE * times for times in (1, 2, 4)]
    assert {pause_after(failures) for failures in (6, 47, 10_000)} == {LONGEST_PAUSE, timedelta(minutes=1)}
