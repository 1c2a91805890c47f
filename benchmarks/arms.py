"""Arms that do the same work, and the one way to measure them: by turns, in an order that changes with each round."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from benchmarks.figures import ArmFigures, Sample, figures_of, times_as_long
from benchmarks.usage import Meter

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to do the work.

    `prepare`: what a round needs, outside the clock. `run`: inside the clock; returns the rows or events that it saw.
    `check`: after the last round, what is left behind, in a form that is equal for arms that did the same; None where
    the arm leaves nothing that others leave too. `rows`: those that it must see, if it does a part of the work.
    """

    name: str
    run: Callable[[], int]
    rows: int = 0
    prepare: Callable[[int], object] = lambda _: None
    check: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """`rows`: those that each arm must see in a round. `prepare`: what all arms share, before the first of a round."""

    name: str
    rows: int
    arms: tuple[Arm, ...]
    parameters: Mapping[str, int | str] = field(default_factory=dict)
    prepare: Callable[[int], object] = lambda _: None
    warm_ups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestFigures:
    """`refused`: why an arm has no figures."""

    name: str
    parameters: Mapping[str, int | str]
    arms: Mapping[str, ArmFigures]
    refused: Mapping[str, str]

    def ratio(self, arm: str, over: str) -> float | None:
        """How many times as long the one takes as the other; None where one of them has no figures."""
        if arm not in self.arms or over not in self.arms:
            return None
        return times_as_long(self.arms[arm], self.arms[over])

    def speed(self, arm: str, over: str) -> float | None:
        """How many times as many rows a second the one does as the other."""
        ratio = self.ratio(arm, over)
        return None if ratio is None else 1 / ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Clockwork:
    """How a run measures. After `budget_seconds` a contest begins no other round, but has at least one."""

    rounds: int
    budget_seconds: float
    meter: Meter
    most_warm_ups: int = 2

    def measure(self, contest: Contest, *, rounds: int = 0) -> ContestFigures:
        """`rounds`: those of the contest, if it needs its own number. An arm that fails leaves, the others go on."""
        samples: dict[str, list[Sample]] = {arm.name: [] for arm in contest.arms}
        refused: dict[str, str] = {}
        log.info("contest", name=contest.name, **contest.parameters)
        began = time.perf_counter()
        warm_ups = min(contest.warm_ups, self.most_warm_ups)
        for number in range((rounds or self.rounds) + warm_ups):
            measured = number - warm_ups
            if measured > 0 and time.perf_counter() - began > self.budget_seconds:
                break
            contest.prepare(number)
            for arm in rotated(contest.arms, number):
                if arm.name not in refused:
                    sample = self._sample(arm, number, arm.rows or contest.rows, refused)
                    if sample is not None and measured >= 0:
                        samples[arm.name].append(sample)
        _compare(contest, refused)
        return ContestFigures(
            name=contest.name,
            parameters=contest.parameters,
            arms={name: figures_of(found) for name, found in samples.items() if name not in refused},
            refused=refused,
        )

    def _sample(self, arm: Arm, number: int, rows: int, refused: dict[str, str]) -> Sample | None:
        try:
            arm.prepare(number)
            seen, sample = self.meter.sample(arm.run)
        except Exception as error:  # a peer may fail in any way: it gives no figure, and the run says so
            log.exception("arm failed", arm=arm.name, round=number)
            refused[arm.name] = f"{type(error).__name__}: {error}"[:500]
            return None
        if seen != rows:
            refused[arm.name] = f"it saw {seen} rows of {rows} in round {number}"
            return None
        log.info("round", arm=arm.name, number=number, seconds=round(sample.wall_seconds, 3))
        return sample


def rotated(arms: tuple[Arm, ...], number: int) -> tuple[Arm, ...]:
    """Each round begins with the next arm, so that none always runs behind the same one."""
    first = number % len(arms)
    return (*arms[first:], *arms[:first])


def _compare(contest: Contest, refused: dict[str, str]) -> None:
    """Refuses the arms that left something else than most did; all of them where no majority shows who is right."""
    left: dict[str, str] = {}
    for arm in contest.arms:
        if arm.name not in refused:
            try:
                content = arm.check()
            except Exception as error:  # the same boundary as for a round
                log.exception("check failed", arm=arm.name)
                refused[arm.name] = f"{type(error).__name__}: {error}"[:500]
                continue
            if content is not None:
                left[arm.name] = repr(content)
    if len(set(left.values())) > 1:
        (most, times), (_, others) = Counter(left.values()).most_common(2)
        for name, content in left.items():
            if content != most or times == others:
                refused[name] = f"it left {content}, others left other rows"
