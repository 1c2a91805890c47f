"""What a command shows while it works: a live line on a terminal, plain lines elsewhere."""

import os
import pty
import sys
from collections.abc import Callable
from functools import partial
from io import RawIOBase, StringIO
from pathlib import Path
from typing import Any

import pytest
import structlog
from rich.console import Console
from structlog.typing import EventDict

from cdc_pipeline.cli.context import POSTGRES_ONLY, Context, log_to_stderr, plain_line, worst
from cdc_pipeline.cli.progress import LINE_SECONDS, shown_progress, steps_shown
from cdc_pipeline.steps import no_step, step

WIDTH = 80


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def shown_on_a_terminal(act: Callable[[Console], None]) -> str:
    """What a person at a pseudo-terminal is shown while `act` runs."""
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w", encoding="utf-8") as file:
        act(Console(file=file, width=WIDTH))
    with os.fdopen(reader, "rb", buffering=0) as shown:
        return b"".join(iter(partial(read_or_nothing, shown), b"")).decode()


def read_or_nothing(file: RawIOBase) -> bytes:
    """Linux ends the reading of a terminal that was closed by an error."""
    try:
        return file.read(1 << 16) or b""
    except OSError:
        return b""


def test_where_nobody_watches_there_are_plain_lines_and_few_of_them() -> None:
    file, clock = StringIO(), Clock()
    with shown_progress("verify", Console(file=file, width=WIDTH), clock=clock) as show:
        on_step = steps_shown(show)
        for seconds in (1.0, LINE_SECONDS, LINE_SECONDS + 1, 2 * LINE_SECONDS):
            clock.now = seconds
            with step(on_step, "lake_table.compare"):
                pass
    assert file.getvalue().splitlines() == [
        "verify: started",
        "verify: lake table: compare (10 s)",
        "verify: lake table: compare (20 s)",
        "verify: finished (20 s)",
    ]


def test_a_command_that_fails_is_not_said_to_have_finished() -> None:
    file = StringIO()
    with pytest.raises(KeyboardInterrupt), shown_progress("verify", Console(file=file)):
        raise KeyboardInterrupt
    assert file.getvalue().splitlines() == ["verify: started"]


def test_a_terminal_shows_each_step_in_one_line_that_disappears() -> None:
    def act(console: Console) -> None:
        with shown_progress("verify", console) as show, step(steps_shown(show), "lake_table.compare"):
            pass

    written = shown_on_a_terminal(act)
    assert "verify: lake table: compare" in written
    assert "0:00:00" in written
    assert "finished" not in written
    assert written.endswith("\x1b[2K")


def test_log_lines_are_written_above_the_live_line_and_results_are_not_touched(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def act(console: Console) -> None:
        with shown_progress("repair", console):
            structlog.get_logger().info("table repaired", written=3)
            sys.stdout.write("the result\n")

    log_to_stderr()
    try:
        written = shown_on_a_terminal(act)
    finally:
        structlog.reset_defaults()
    assert "table repaired" in written
    assert "the result" not in written
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("the result\n", "")


def test_the_renewal_of_a_lease_hides_no_step() -> None:
    stages = list[str]()
    on_step = steps_shown(stages.append)
    with step(on_step, "lake_table.merge"), step(on_step, "lease.renew"):
        pass
    assert stages == ["lake table: merge"]


def test_a_command_that_is_usually_fast_shows_its_progress_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    context = Context(config=Path("pipeline.yml"), as_json=False)
    with context.shown_steps(None, POSTGRES_ONLY) as on_step:
        assert on_step is no_step
    with context.shown_steps("clean", POSTGRES_ONLY) as on_step:
        assert on_step is not no_step
    assert capsys.readouterr().err.splitlines() == ["clean: started", "clean: finished (0 s)"]


def test_no_log_line_shows_a_secret_or_a_local_variable_also_in_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    kept = list[Any]()

    def fail() -> None:
        row = "a row of somebody"
        raise OSError(f"postgresql://cdc:hunter2@db/x does not answer {len(row)}")

    def keep(_logger: object, _name: str, event: EventDict) -> EventDict:
        kept.append(dict(event))
        return event

    log_to_stderr(keep)
    try:
        try:
            fail()
        except OSError:
            structlog.get_logger().exception("slice run failed", url="postgresql://cdc:hunter2@db/x")
    finally:
        structlog.reset_defaults()
    shown = capsys.readouterr().err
    for text in (shown, plain_line(kept[0])):
        assert "does not answer 17" in text
        assert "hunter2" not in text
        assert "somebody" not in text.replace('row = "a row of somebody"', "")


def test_messages_keep_brackets_of_names(capsys: pytest.CaptureFixture[str]) -> None:
    Context(config=Path("pipeline.yml"), as_json=False).say("ready: shop.public.[/x], shop.public.a[id]")
    assert capsys.readouterr().err == "ready: shop.public.[/x], shop.public.a[id]\n"


def test_a_table_that_failed_counts_more_than_one_that_another_process_works_on() -> None:
    assert [worst(codes) for codes in (set[int](), {0}, {0, 4}, {4, 1}, {3, 4})] == [0, 0, 4, 1, 3]
