"""Airflow's own faults, and those of the workers that its runs wait for: the table is right every time."""

from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Event

import pytest

from tests.chaos.airflow_stack import (
    LIMIT_SECONDS,
    SOON_SECONDS,
    VICTIM,
    Stack,
    Strike,
    check_cell,
    paused,
    small_stack,
    write_backlog,
)
from tests.chaos.report import Report
from tests.chaos.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.stack]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with small_stack("resident") as stack:
        yield stack


def kill_the_worker(stack: Stack) -> None:
    """The other one takes its request."""
    stack.worker().kill()


def kill_all_workers(stack: Stack) -> None:
    """Nobody takes the request before the supervisor has started a worker again."""
    stack.worker()
    for worker in stack.resident_workers():
        worker.kill()


def pause_the_worker_past_its_lease(stack: Stack) -> None:
    """It goes on when the other one has its request."""
    worker = stack.worker()
    with paused(worker):
        wait_for(lambda: stack.worker().pid != worker.pid, "a second worker")


def kill_the_triggerer(stack: Stack) -> None:
    """While a run's request waits, which the next triggerer finds; what is written after that, only that one sees."""
    wait_for(stack.is_quiet, "the first backlog's end")
    with paused(*stack.resident_workers()):
        write_backlog(stack, seconds=SOON_SECONDS)
        wait_for(stack.has_request, "a request")
        stack.main_process("triggerer").kill()
    write_backlog(stack, seconds=SOON_SECONDS)


def keep_the_scheduler_away(stack: Stack) -> None:
    stack.worker()
    with stack.away("scheduler"):
        Event().wait(LIMIT_SECONDS + SOON_SECONDS)


def keep_the_api_server_away(stack: Stack) -> None:
    stack.worker()
    with stack.away("api-server"):
        Event().wait(LIMIT_SECONDS * 2)


def backfill_meanwhile(stack: Stack) -> None:
    stack.worker()
    now = datetime.now(UTC)
    start = now.replace(minute=0, second=0, microsecond=0)
    stack.airflow.backfill("cdc_backfill", start=start, end=now, conf={"tables": [str(VICTIM)]})


def trigger_two_more(stack: Stack) -> None:
    stack.airflow.trigger(stack.dag, {})
    stack.airflow.trigger("cdc_backfill", {"tables": [str(VICTIM)]})


CASES: dict[str, Strike] = {
    "resident worker: kill -9 during a claim": kill_the_worker,
    "resident worker: all killed -9 during a claim": kill_all_workers,
    "resident worker: paused past its lease": pause_the_worker_past_its_lease,
    "triggerer: kill -9 while a request waits": kill_the_triggerer,
    "scheduler: kill -9, back after its heartbeat limit": keep_the_scheduler_away,
    "api-server: away for twice the heartbeat limit": keep_the_api_server_away,
    "schedule: a backfill at once": backfill_meanwhile,
    "schedule: two manual runs at once": trigger_two_more,
}


@pytest.mark.parametrize("case", CASES)
def test_the_table_is_right_and_no_run_has_failed_after(stack: Stack, report: Report, case: str) -> None:
    failed = stack.failed_runs()
    check_cell(stack, report, case, CASES[case])
    assert stack.failed_runs() == failed
