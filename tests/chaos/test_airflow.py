"""Airflow's own faults: two workers of one table do live at the same time, and the table is right every time."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Event

import psutil
import pytest

from tests.chaos.airflow_stack import LIMIT_SECONDS, VICTIM, Stack, Watch, small_stack, write_backlog
from tests.chaos.evidence import lake_rows, source_rows
from tests.chaos.report import Report
from tests.chaos.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.stack]

BACKLOG_SECONDS = 20
SOON_SECONDS = 5


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with small_stack() as stack:
        yield stack


def kill_the_task_supervisor(stack: Stack) -> None:
    parent = stack.worker().parent()
    assert parent is not None
    parent.kill()


def pause_the_worker_past_its_lease(stack: Stack) -> None:
    """Its supervisor is killed before: the kernel ends paused processes that are orphaned."""
    worker = stack.worker()
    parent = worker.parent()
    assert parent is not None
    parent.kill()
    worker.suspend()
    Event().wait(LIMIT_SECONDS + SOON_SECONDS)
    wait_for(lambda: stack.worker().pid != worker.pid, "a second worker")
    with suppress(psutil.NoSuchProcess):
        worker.resume()


def kill_the_scheduler(stack: Stack) -> None:
    stack.worker()
    stack.main_process("scheduler").kill()


def keep_the_scheduler_away(stack: Stack) -> None:
    stack.worker()
    with stack.away("scheduler"):
        Event().wait(LIMIT_SECONDS + SOON_SECONDS)


def keep_the_api_server_away(stack: Stack) -> None:
    stack.worker()
    with stack.away("api-server"):
        Event().wait(LIMIT_SECONDS * 2)


def kill_the_triggerer(stack: Stack) -> None:
    """What is written after that, only the next one can see."""
    stack.main_process("triggerer").kill()
    write_backlog(stack, seconds=SOON_SECONDS)


def backfill_meanwhile(stack: Stack) -> None:
    stack.worker()
    now = datetime.now(UTC)
    start = now.replace(minute=0, second=0, microsecond=0)
    stack.airflow.backfill("cdc_backfill", start=start, end=now, conf={"tables": [str(VICTIM)]})


def trigger_two_more(stack: Stack) -> None:
    stack.airflow.trigger(stack.dag, {})
    stack.airflow.trigger("cdc_backfill", {"tables": [str(VICTIM)]})


CASES: dict[str, Callable[[Stack], None]] = {
    "task supervisor: kill -9": kill_the_task_supervisor,
    "task supervisor: kill -9, worker paused past its lease": pause_the_worker_past_its_lease,
    "scheduler: kill -9, back within its heartbeat limit": kill_the_scheduler,
    "scheduler: kill -9, back after its heartbeat limit": keep_the_scheduler_away,
    "api-server: away for twice the heartbeat limit": keep_the_api_server_away,
    "triggerer: kill -9": kill_the_triggerer,
    "schedule: a backfill at once": backfill_meanwhile,
    "schedule: two manual runs at once": trigger_two_more,
}


@pytest.mark.parametrize("case", CASES)
def test_the_table_is_right_after(stack: Stack, report: Report, case: str) -> None:
    place, _, fault = case.partition(": ")
    watch = Watch(stack=stack)
    with report.red_unless_done(f"Airflow: {place}", fault), watch.looking():
        write_backlog(stack, seconds=BACKLOG_SECONDS)
        stack.airflow.trigger(stack.dag, {})
        CASES[case](stack)
        began = time.monotonic()
        wait_for(stack.has_applied_everything, "everything in the lake")
        took = timedelta(seconds=time.monotonic() - began)
        wait_for(stack.is_quiet, "every task to end")
        assert source_rows(stack.pipeline.endpoints.source_url, VICTIM) == lake_rows(stack.pipeline, VICTIM)
    tries, together = watch.together()
    words = f"two workers alive at once for {together.total_seconds():.0f} s" if tries else "one worker at a time"
    report.record(f"Airflow: {place}", fault, f"equal; {words}", took)
