"""A process that dies at one place, or misses an answer there: named by step, moment, and the step's how manieth."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from cdc_pipeline.errors import CdcError
from cdc_pipeline.steps import Moment


class Crash(BaseException):
    """The process is gone: no handler of the code under test catches this one."""


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """`occurrence` counts from one."""

    name: str
    moment: Moment
    occurrence: int

    def __str__(self) -> str:
        return f"{self.name}, {self.moment}, number {self.occurrence}"


@dataclass(slots=True)
class Failpoint:
    """Injected as `on_step`. Records every site; at `site` the process dies, and takes no further step."""

    site: Site | None = None
    recorded: list[Site] = field(default_factory=list)
    is_dead: bool = False
    _reached: Counter[tuple[str, Moment]] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def __call__(self, name: str, moment: Moment) -> None:
        with self._lock:
            if self.is_dead:
                raise Crash
            reached = self._reach(name, moment)
            if reached == self.site:
                self.is_dead = True
                raise Crash(str(reached))

    def _reach(self, name: str, moment: Moment) -> Site:
        self._reached[name, moment] += 1
        reached = Site(name, moment, self._reached[name, moment])
        self.recorded.append(reached)
        return reached


@dataclass(slots=True)
class LostAnswer(Failpoint):
    """At `site`, which is one of the moment AFTER, it has happened outside, and the call says `error` instead.

    The process lives, so its own handling of errors runs, and may call again.
    """

    error: CdcError = field(kw_only=True)
    is_lost: bool = False

    def __call__(self, name: str, moment: Moment) -> None:
        with self._lock:
            reached = self._reach(name, moment)
        if reached == self.site:
            self.is_lost = True
            raise self.error


@dataclass(slots=True)
class Countdown:
    """Dies after so many steps that change something. `changes` says whether a step of that name does."""

    steps: int
    changes: Callable[[str], bool]
    is_dead: bool = False

    def __call__(self, name: str, moment: Moment) -> None:
        if self.is_dead:
            raise Crash
        self.steps -= moment is Moment.AFTER and self.changes(name)
        if self.steps == 0:
            self.is_dead = True
            raise Crash(name)
