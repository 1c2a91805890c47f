"""Faults of the task processes that apply slices with `worker.runs: task`: the table is right every time."""

from collections.abc import Iterator
from threading import Event

import pytest

from tests.chaos.airflow_stack import LIMIT_SECONDS, SOON_SECONDS, Stack, Strike, check_cell, paused, small_stack
from tests.chaos.report import Report
from tests.chaos.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.stack]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with small_stack("task") as stack:
        yield stack


def kill_the_task_supervisor(stack: Stack) -> None:
    parent = stack.worker().parent()
    assert parent is not None
    parent.kill()


def pause_the_task_past_its_lease(stack: Stack) -> None:
    """Its supervisor is killed before: the kernel ends paused processes that are orphaned."""
    task = stack.worker()
    parent = task.parent()
    assert parent is not None
    parent.kill()
    with paused(task):
        Event().wait(LIMIT_SECONDS + SOON_SECONDS)
        wait_for(stack.has_applied_everything, "a second worker to apply everything")


CASES: dict[str, Strike] = {
    "task supervisor: kill -9": kill_the_task_supervisor,
    "task supervisor: kill -9, task paused past its lease": pause_the_task_past_its_lease,
}


@pytest.mark.parametrize("case", CASES)
def test_the_table_is_right_after(stack: Stack, report: Report, case: str) -> None:
    check_cell(stack, report, case, CASES[case])
