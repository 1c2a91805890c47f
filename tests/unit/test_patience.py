"""The pauses of a failing table grow up to their longest, parking comes in time, and an outage parks nobody."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.patience import Patience, Pause, next_pause

SECONDS = timedelta(seconds=1)
DURATIONS = st.timedeltas(min_value=SECONDS, max_value=timedelta(days=30))
PATIENCES = st.builds(
    Patience, first_pause=DURATIONS, longest_pause=DURATIONS, retry_for=DURATIONS, probe_parked=DURATIONS
)


def pauses(patience: Patience, failures: int, *, is_outage: bool = False) -> list[Pause]:
    """What a table sees that fails at every try as soon as its pause is over."""
    failing_for, is_parked, found = timedelta(), False, list[Pause]()
    for number in range(1, failures + 1):
        pause = next_pause(patience, failures=number, failing_for=failing_for, is_outage=is_outage, is_parked=is_parked)
        failing_for, is_parked = failing_for + pause.length, pause.parks
        found.append(pause)
    return found


def test_by_default_a_table_is_tried_for_an_hour_and_then_probed_every_quarter() -> None:
    found = pauses(Patience(), 20)
    trying = [pause.length / SECONDS for pause in found if not pause.parks]
    assert trying == [10, 20, 40, 80, 160, *[300] * 11]
    assert {pause.length for pause in found if pause.parks} == {timedelta(minutes=15)}


@given(PATIENCES, st.integers(1, 40))
def test_pauses_never_shrink_and_never_exceed_the_longest(patience: Patience, failures: int) -> None:
    lengths = [pause.length for pause in pauses(patience, failures) if not pause.parks]
    assert lengths == sorted(lengths)
    assert all(timedelta() < length <= patience.longest_pause for length in lengths)


@given(PATIENCES, st.integers(1, 200))
def test_tries_are_bounded_and_a_parked_table_stays_parked(patience: Patience, failures: int) -> None:
    found = pauses(patience, failures)
    trying = [pause for pause in found if not pause.parks]
    assert found[: len(trying)] == trying
    assert sum((pause.length for pause in trying[:-1]), timedelta()) < patience.retry_for
    assert {pause.length for pause in found[len(trying) :]} <= {patience.probe_parked}


@given(PATIENCES, st.integers(1, 200))
def test_no_outage_parks_a_table_however_long_it_lasts(patience: Patience, failures: int) -> None:
    found = pauses(patience, failures, is_outage=True)
    assert not any(pause.parks for pause in found)
    assert all(pause.length <= patience.longest_pause for pause in found)


@given(PATIENCES, st.integers(1, 10**9))
def test_a_parked_table_is_probed_whatever_its_probe_finds(patience: Patience, failures: int) -> None:
    for is_outage in (True, False):
        pause = next_pause(patience, failures=failures, failing_for=timedelta(), is_outage=is_outage, is_parked=True)
        assert pause == Pause(length=patience.probe_parked, parks=True)
