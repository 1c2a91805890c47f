"""A process that dies at one place: named by step, moment, and how often that step had been reached."""

from collections import Counter
from dataclasses import dataclass, field
from threading import Lock

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
            self._reached[name, moment] += 1
            reached = Site(name, moment, self._reached[name, moment])
            self.recorded.append(reached)
            if reached == self.site:
                self.is_dead = True
                raise Crash(str(reached))
