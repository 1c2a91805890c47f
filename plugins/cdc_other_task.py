"""Whether another task of the same run goes on, as Airflow knows it."""

import time
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, Protocol

import structlog
from airflow.sdk.exceptions import AirflowRuntimeError

from cdc_pipeline.errors import SnapshotError

log = structlog.get_logger()

EVERY = timedelta(seconds=30)
FAILED = frozenset({"failed", "skipped", "upstream_failed", "removed"})
ENDED = FAILED | {"success"}


class TaskStates(Protocol):
    """What is used of Airflow's task instance."""

    dag_id: str
    run_id: str

    def get_task_states(self, dag_id: str, *, task_ids: list[str], run_ids: list[str]) -> Mapping[str, Any]:
        """By run, the state of each task instance: by the task's id, with its number for a mapped task."""


def check_goes_on(
    of: TaskStates,
    task_id: str,
    ended: Collection[str] = ENDED,
    *,
    every: timedelta = EVERY,
    now: Callable[[], float] = time.monotonic,
) -> Callable[[], None]:
    """Returns a check that may be called often: it asks Airflow once in a while for the task `task_id` of the run.

    It raises SnapshotError when all instances of that task are in states of `ended`, as after a person marked them:
    nobody does the other half of the work then. An instance that is tried again has not ended. If Airflow does not
    answer, the check passes.
    """
    asked = now()

    def check() -> None:
        nonlocal asked
        if now() - asked < every.total_seconds():
            return
        asked = now()
        try:
            found = of.get_task_states(of.dag_id, task_ids=[task_id], run_ids=[of.run_id])
        except AirflowRuntimeError as error:
            log.warning("Airflow does not say whether the task goes on", task=task_id, error=str(error))
            return
        states = [str(state) for state in found.get(of.run_id, {}).values()]
        if states and all(state in ended for state in states):
            raise SnapshotError(
                f"the task {task_id} of this run has ended ({', '.join(sorted(set(states)))}), and tables have no"
                " snapshot yet",
                expected=f"a run in which {task_id} goes on until every table has one",
                remedy="clear the whole run, or trigger a new one; finished tasks stay finished",
            )

    return check
