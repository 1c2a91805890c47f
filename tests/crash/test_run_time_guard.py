"""While the four verbs run, no file changes, no SQL commits, nobody is called, but inside a named step."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import local
from typing import Any

import sqlalchemy

from cdc_pipeline.steps import Moment
from tests.crash.invariants import check
from tests.crash.world import World, apply_all, take_snapshot
from tests.support.pipelines import consume

CHANGES = frozenset(
    {"os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"}
)
CALLS = frozenset({"os.exec", "os.fork", "os.kill", "os.posix_spawn", "socket.connect", "subprocess.Popen"})
WRITING = os.O_WRONLY | os.O_RDWR


@dataclass(slots=True)
class Guard:
    """Injected as `on_step`; `outside` lists what happened in a thread that was in no step. Files: below `folder`."""

    folder: str
    outside: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    is_on: bool = False
    _now: local = field(default_factory=local)

    def __call__(self, name: str, moment: Moment) -> None:
        self._now.step = name if moment is Moment.BEFORE else ""

    def saw(self, what: str) -> None:
        if self.is_on:
            step = getattr(self._now, "step", "")
            self.seen.add(f"{what.partition(' ')[0]} in {step}")
            if not step:
                self.outside.append(what)

    def audit(self, event: str, values: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event in CALLS:
            self.saw(event)
        opens = event == "open" and isinstance(values[2], int) and values[2] & WRITING
        if (opens or event in CHANGES) and str(values[0]).startswith(self.folder):
            self.saw(f"{event} {values[0]}")


@contextmanager
def watched(guard: Guard) -> Iterator[None]:
    """An audit hook stays for ever, so it is told when to look away."""
    sys.addaudithook(guard.audit)

    def committed(_connection: sqlalchemy.Connection) -> None:
        guard.saw("commit")

    sqlalchemy.event.listen(sqlalchemy.Engine, "commit", committed)
    guard.is_on = True
    try:
        yield
    finally:
        guard.is_on = False
        sqlalchemy.event.remove(sqlalchemy.Engine, "commit", committed)


def test_the_four_verbs_reach_outside_in_named_steps_alone(world: World) -> None:
    guard = Guard(folder=str(world.settings.folder))
    world.change(marks=2)
    with world.process(guard) as pipeline, watched(guard):
        consume(pipeline)
        apply_all(pipeline)
        take_snapshot(pipeline, world.tables)
    assert guard.outside == []
    assert {"commit in registry.register", "os.link in slice_file.put", "os.link in lake_table.merge"} <= guard.seen
    check(world)
