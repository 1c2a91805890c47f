"""A bell that starts a table's worker at once and does not nag."""

from datetime import timedelta

from cdc_wake_up_policy import WakeUpPolicy, wake_up_policy_of_snapshots

SECONDS = timedelta(seconds=1)


def bell() -> WakeUpPolicy:
    return WakeUpPolicy(10 * SECONDS, 60 * SECONDS, 5 * SECONDS)


def test_the_bell_rings_at_once_for_a_backlog_and_for_each_newer_slice() -> None:
    door = bell()
    assert door.wakes(5, is_leased=False, now=100)
    assert not door.wakes(5, is_leased=False, now=101)
    assert door.wakes(6, is_leased=False, now=102)


def test_the_bell_rings_again_ever_more_rarely_while_the_same_slice_waits() -> None:
    door = bell()
    rung = [now for now in range(300) if door.wakes(5, is_leased=False, now=now)]
    assert rung == [0, 10, 30, 70, 130, 190, 250]


def test_the_bell_for_a_snapshot_that_set_up_refuses_rings_each_quarter_of_an_hour_in_the_end() -> None:
    door, pause = wake_up_policy_of_snapshots(), 15 * 60
    rung = [now for now in range(0, 6 * pause, 10) if door.wakes(5, is_leased=False, now=now)]
    assert rung == [0, 10, 30, 70, 150, 310, 630, 1270, *(1270 + pause * number for number in (1, 2, 3, 4))]


def test_the_bell_is_silent_while_somebody_works_and_rings_when_work_is_left() -> None:
    door = bell()
    assert door.wakes(5, is_leased=False, now=0)
    assert not any(door.wakes(6, is_leased=True, now=now) for now in range(1, 60))
    assert door.wakes(6, is_leased=False, now=60)


def test_the_bell_of_a_dead_worker_rings_at_the_first_look_after_its_lease() -> None:
    door, lease_ends = bell(), 60
    rung = [now for now in range(100) if door.wakes(5, is_leased=0 < now < lease_ends, now=now)]
    assert rung[:2] == [0, lease_ends]


def test_the_bell_forgets_a_slice_that_was_applied() -> None:
    door = bell()
    assert door.wakes(5, is_leased=False, now=0)
    assert not door.wakes(None, is_leased=False, now=1)
    assert door.wakes(5, is_leased=False, now=2)


def test_the_bell_leaves_slices_to_a_run_that_goes_on_and_rings_when_nobody_takes_them() -> None:
    door = bell()
    assert not any(door.wakes(5, is_leased=False, is_awaited=True, now=now) for now in range(4))
    assert not door.wakes(5, is_leased=True, now=4)
    assert not door.wakes(None, is_leased=False, now=5)
    rung = [now for now in range(6, 14) if door.wakes(now, is_leased=False, is_awaited=True, now=now)]
    assert rung == [11, 12, 13], "each second a newer slice, and nobody has taken one for five seconds"
