"""The pauses of a failing table grow up to their longest, parking comes in time, and an outage parks nobody."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.settings.retry_policy import Pause, RetryPolicy, next_pause

SECONDS = timedelta(seconds=1)
DURATIONS = st.timedeltas(min_value=SECONDS, max_value=timedelta(days=30))
POLICIES = st.builds(
    RetryPolicy, first_pause=DURATIONS, longest_pause=DURATIONS, retry_for=DURATIONS, probe_parked=DURATIONS
)


def pauses(retry_policy: RetryPolicy, failures: int, *, is_outage: bool = False) -> list[Pause]:
    """What a table sees that fails at every try as soon as its pause is over."""
    failing_for, is_parked, found = timedelta(), False, list[Pause]()
    for number in range(1, failures + 1):
        pause = next_pause(
            retry_policy, failures=number, failing_for=failing_for, is_outage=is_outage, is_parked=is_parked
        )
        failing_for, is_parked = failing_for + pause.length, pause.parks
        found.append(pause)
    return found


def test_by_default_a_table_is_tried_for_an_hour_and_then_probed_every_quarter() -> None:
    found = pauses(RetryPolicy(), 20)
    trying = [pause.length / SECONDS for pause in found if not pause.parks]
    assert trying == [10, 20, 40, 80, 160, *[300] * 11]
    assert {pause.length for pause in found if pause.parks} == {timedelta(minutes=15)}


@given(POLICIES, st.integers(1, 40))
def test_pauses_never_shrink_and_never_exceed_the_longest(retry_policy: RetryPolicy, failures: int) -> None:
    lengths = [pause.length for pause in pauses(retry_policy, failures) if not pause.parks]
    assert lengths == sorted(lengths)
    assert all(timedelta() < length <= retry_policy.longest_pause for length in lengths)


@given(POLICIES, st.integers(1, 200))
def test_tries_are_bounded_and_a_parked_table_stays_parked(retry_policy: RetryPolicy, failures: int) -> None:
    found = pauses(retry_policy, failures)
    trying = [pause for pause in found if not pause.parks]
    assert found[: len(trying)] == trying
    assert sum((pause.length for pause in trying[:-1]), timedelta()) < retry_policy.retry_for
    assert {pause.length for pause in found[len(trying) :]} <= {retry_policy.probe_parked}


@given(POLICIES, st.integers(1, 200))
def test_no_outage_parks_a_table_however_long_it_lasts(retry_policy: RetryPolicy, failures: int) -> None:
    found = pauses(retry_policy, failures, is_outage=True)
    assert not any(pause.parks for pause in found)
    assert all(pause.length <= retry_policy.longest_pause for pause in found)


@given(POLICIES, st.integers(1, 10**9))
def test_a_parked_table_is_probed_whatever_its_probe_finds(retry_policy: RetryPolicy, failures: int) -> None:
    for is_outage in (True, False):
        pause = next_pause(
            retry_policy, failures=failures, failing_for=timedelta(), is_outage=is_outage, is_parked=True
        )
        assert pause == Pause(length=retry_policy.probe_parked, parks=True)
