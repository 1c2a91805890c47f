"""Arms take turns, and only those that did the same work have figures."""

from dataclasses import replace

from benchmarks.arms import Arm, Clockwork, Contest, rotated
from benchmarks.usage import CLIENT, Meter

CLOCKWORK = Clockwork(rounds=3, budget_seconds=60.0, meter=Meter())


def arm(name: str, calls: list[str], rows: int = 5, content: object = None) -> Arm:
    def run() -> int:
        calls.append(name)
        return rows

    return Arm(name=name, run=run, check=lambda: content)


def contest(*arms: Arm, warm_ups: int = 0) -> Contest:
    return Contest(name="some work", rows=5, arms=arms, warm_ups=warm_ups)


def test_each_round_begins_with_the_next_arm() -> None:
    calls: list[str] = []
    CLOCKWORK.measure(contest(arm("a", calls), arm("b", calls), arm("c", calls)))
    assert "".join(calls) == "abcbcacab"
    assert [each.name for each in rotated((arm("a", []), arm("b", [])), 5)] == ["b", "a"]


def test_warm_ups_run_and_are_not_counted() -> None:
    calls: list[str] = []
    found = CLOCKWORK.measure(contest(arm("a", calls), warm_ups=2))
    assert (len(calls), found.arms["a"].rounds) == (5, 3)


def test_an_arm_that_saw_another_number_of_rows_has_no_figure() -> None:
    found = CLOCKWORK.measure(contest(arm("a", []), arm("b", [], rows=4)))
    assert {*found.arms} == {"a"}
    assert found.refused == {"b": "it saw 4 rows of 5 in round 0"}
    assert found.ratio("a", "b") is None


def test_an_arm_that_fails_has_no_figure_and_the_others_go_on() -> None:
    def fail() -> int:
        message = "away"
        raise OSError(message)

    found = CLOCKWORK.measure(contest(Arm(name="broken", run=fail), arm("a", [])))
    assert found.refused == {"broken": "OSError: away"}
    assert found.arms["a"].rounds == 3


def test_the_arm_that_left_other_rows_than_the_rest_has_no_figure() -> None:
    arms = (arm("a", [], content=(5, 1)), arm("b", [], content=(5, 2)), arm("c", [], content=(5, 1)), arm("d", []))
    assert {*CLOCKWORK.measure(contest(*arms)).arms} == {"a", "c", "d"}


def test_of_two_arms_that_differ_neither_has_a_figure() -> None:
    found = CLOCKWORK.measure(contest(arm("a", [], content=1), arm("b", [], content=2)))
    assert found.arms == {}
    assert {*found.refused} == {"a", "b"}


def test_behind_its_budget_a_contest_begins_no_other_round_but_has_one() -> None:
    found = replace(CLOCKWORK, budget_seconds=-1.0).measure(contest(arm("a", [])))
    assert found.arms["a"].rounds == 1


def test_an_arm_may_do_a_part_and_is_compared_by_the_row() -> None:
    part = replace(arm("part", [], rows=2), rows=2)
    found = CLOCKWORK.measure(contest(arm("a", []), part))
    assert found.refused == {}
    assert found.arms["part"].rows == 2


def test_processor_seconds_and_peak_memory_of_this_process_are_measured() -> None:
    def work() -> int:
        return len([sum(range(1_000)) for _ in range(2_000)])

    rows, sample = Meter().sample(work)
    assert rows == 2_000
    assert sample.processor_seconds[CLIENT] > 0
    assert sample.peak_bytes[CLIENT] > 1_000_000
