"""When a process that lives is taken for hung."""

import threading
from collections.abc import Callable

from cdc_pipeline.launcher.health import Health
from cdc_pipeline.launcher.probe import MOST_MISSES, Probe

SILENCE = 60.0
EVERY = SILENCE / MOST_MISSES
DAY = 86_400.0


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def in_order(*answers: Health) -> Callable[[], Health]:
    """One after the other, the last one again and again."""
    left = list(answers)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def hangs_at(probe: Probe, clock: Hand, *, rounds: int = 3 * MOST_MISSES, waits: bool = True) -> int | None:
    """The number of the round in which it is taken for hung."""
    for number in range(rounds):
        if probe.hangs(silence=SILENCE):
            return number
        for thread in threading.enumerate() if waits else ():
            if thread.name == "probe":
                thread.join()
        clock.now += EVERY
    return None


def test_one_that_gives_no_good_answer_for_a_minute_hangs() -> None:
    clock = Hand()
    assert hangs_at(Probe(in_order(Health.SILENT), clock=clock), clock) == MOST_MISSES
    assert clock.now == SILENCE


def test_one_good_answer_begins_the_minute_anew() -> None:
    clock = Hand()
    answers = [Health.SILENT] * (MOST_MISSES - 1) + [Health.HEALTHY, Health.SILENT]
    assert hangs_at(Probe(in_order(*answers), clock=clock), clock) == 2 * MOST_MISSES


def test_one_of_which_nobody_can_tell_is_not_taken_for_hung() -> None:
    clock = Hand()
    assert hangs_at(Probe(in_order(Health.UNKNOWN), clock=clock), clock) is None


def test_a_question_that_is_never_answered_counts_whenever_another_one_is_due() -> None:
    clock, never = Hand(), threading.Event()

    def ask() -> Health:
        never.wait()
        return Health.HEALTHY

    assert hangs_at(Probe(ask, clock=clock), clock, waits=False) == MOST_MISSES
    assert hangs_at(Probe(ask, unanswered=Health.UNKNOWN, clock=clock), clock, waits=False) is None
    never.set()


def test_a_machine_that_slept_for_a_day_kills_nobody_when_it_wakes_up() -> None:
    clock = Hand()
    probe = Probe(in_order(Health.HEALTHY, Health.SILENT, Health.HEALTHY), clock=clock)
    assert hangs_at(probe, clock, rounds=1) is None
    clock.now += DAY
    assert hangs_at(probe, clock) is None


def test_a_check_whose_thread_cannot_be_started_says_nothing_and_the_next_one_is_made() -> None:
    clock = Hand()
    probe = Probe(in_order(Health.SILENT), clock=clock)
    usual = threading.stack_size(1 << 60)  # no machine has that much
    try:
        assert hangs_at(probe, clock) is None
    finally:
        threading.stack_size(usual)
    assert hangs_at(probe, clock) == MOST_MISSES
