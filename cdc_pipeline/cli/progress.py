"""What a command is doing, for the person who waits: one live line on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cdc_pipeline.steps import Moment, OnStep

if TYPE_CHECKING:
    from rich.console import Console

LINE_SECONDS = 10.0
"""Shortest time between two plain lines about the steps of one command."""
_BACKGROUND = "lease."
"""Steps of the threads that renew leases; they say nothing about the work."""
ShowStage = Callable[[str], None]


@contextmanager
def shown_progress(
    command: str, console: "Console", *, clock: Callable[[], float] = time.monotonic
) -> Iterator[ShowStage]:
    """Yields a function that shows what `command` does now.

    On a terminal one line changes in place: command, stage, elapsed time. It disappears when the block ends.
    Elsewhere one plain line is written at the start, one at most every LINE_SECONDS, and one at the end of success.
    """
    with _live_line(command, console) if console.is_terminal else _plain_lines(command, console, clock) as show:
        yield show


def steps_shown(show: ShowStage) -> OnStep:
    """An `on_step` that shows each named step as a stage: `lake_table.merge` as "lake table: merge"."""

    def on_step(name: str, moment: Moment) -> None:
        if moment is Moment.BEFORE and not name.startswith(_BACKGROUND):
            show(name.replace("_", " ").replace(".", ": "))

    return on_step


@contextmanager
def _live_line(command: str, console: "Console") -> Iterator[ShowStage]:
    """Log lines that are written meanwhile appear above the live line; stdout is left alone."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as live:
        task = live.add_task(command, total=None)
        yield lambda stage: live.update(task, description=f"{command}: {stage}")


@contextmanager
def _plain_lines(command: str, console: "Console", clock: Callable[[], float]) -> Iterator[ShowStage]:
    started = clock()
    due = started + LINE_SECONDS

    def write(words: str) -> None:
        console.print(words, markup=False, highlight=False, soft_wrap=True)

    def show(stage: str) -> None:
        nonlocal due
        now = clock()
        if now >= due:
            due = now + LINE_SECONDS
            write(f"{command}: {stage} ({now - started:.0f} s)")

    write(f"{command}: started")
    yield show
    write(f"{command}: finished ({clock() - started:.0f} s)")
