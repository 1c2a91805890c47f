"""Which calls to an S3 server fail next: by script, by rule, or by seeded chance. A rule for `faulty_server`."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from random import Random
from threading import Lock

from tests.support.faulty_server import Call, Fault, Request, Rule, faulty


@dataclass(slots=True, kw_only=True)
class FaultPlan:
    """`made` counts the faults that were made, and `calls` every call."""

    made: Counter[tuple[Call, str]] = field(default_factory=Counter)
    calls: Counter[Call] = field(default_factory=Counter)
    _next: dict[Call, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    _rules: list[Rule] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def fail(self, call: Call, fault: Fault, *, times: int) -> None:
        with self._lock:
            self._next[call] += [fault] * times

    def forget(self, call: Call) -> int:
        """How many planned faults of a call were not made; they never will be."""
        with self._lock:
            return len(self._next.pop(call, []))

    @contextmanager
    def failing(self, rule: Rule) -> Iterator[None]:
        """Inside the block what the rule chooses fails; it is asked about one request at a time."""
        with self._lock:
            self._rules.append(rule)
        try:
            yield
        finally:
            with self._lock:
                self._rules.remove(rule)

    def storm(self, chance: Random, faults: Sequence[Fault], *, share: float) -> AbstractContextManager[None]:
        """Inside the block about that share of all calls fails, whatever they are."""
        return self.failing(lambda _: chance.choice(faults) if chance.random() < share else None)

    def rule(self, request: Request) -> Fault | None:
        call = request.call
        with self._lock:
            self.calls[call] += 1
            planned = self._next[call]
            fault = planned.pop(0) if planned else next(filter(None, (rule(request) for rule in self._rules)), None)
            if fault is not None:
                self.made[call, fault.name] += 1
            return fault


@contextmanager
def planned_faults(upstream: str) -> Iterator[tuple[str, FaultPlan]]:
    """The URL of a server before `upstream`, and the plan of what fails there."""
    plan = FaultPlan()
    with faulty(upstream) as server:
        server.rule = plan.rule
        yield server.endpoint, plan
