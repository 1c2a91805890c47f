"""Whether another task of the same run goes on, as Airflow knows it."""

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Protocol

import structlog
from airflow.sdk.exceptions import AirflowRuntimeError

from cdc_pipeline.errors import SnapshotError

log = structlog.get_logger()

WITHIN = timedelta(seconds=30)
ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


class TaskStates(Protocol):
    """What is used of Airflow's task instance."""

    dag_id: str
    run_id: str

    def get_task_states(self, dag_id: str, *, task_ids: list[str], run_ids: list[str]) -> Mapping[str, Any]:
        """By run, the state of each task instance: by the task's id, with its number for a mapped task."""


def check_goes_on(
    of: TaskStates,
    task_id: str,
    *,
    looks: int = 1,
    within: timedelta = WITHIN,
    now: Callable[[], float] = time.monotonic,
) -> Callable[[], None]:
    """Returns a check that may be called often: it asks Airflow `looks` times in `within` for the task of the run.

    It raises SnapshotError when all instances of that task have ended at so many looks in a row, as after a person
    marked them: nobody does the other half of the work then. An instance that is tried again has not ended. If Airflow
    does not answer, the check passes.

    A task that ends by itself because the work is done needs two looks: its last work may be younger than what the
    caller knew of it at the first one.
    """
    asked, seen = now(), 0

    def check() -> None:
        nonlocal asked, seen
        if now() - asked < within.total_seconds() / looks:
            return
        asked = now()
        try:
            found = of.get_task_states(of.dag_id, task_ids=[task_id], run_ids=[of.run_id])
        except AirflowRuntimeError as error:
            log.warning("Airflow does not say whether the task goes on", task=task_id, error=str(error))
            return
        states = [str(state) for state in found.get(of.run_id, {}).values()]
        seen = seen + 1 if states and all(state in ENDED for state in states) else 0
        if seen >= looks:
            raise SnapshotError(
                f"the task {task_id} of this run has ended ({', '.join(sorted(set(states)))}), and tables have no"
                " snapshot yet",
                expected=f"a run in which {task_id} goes on until every table has one",
                remedy="trigger a new run with these tables; to clear the whole run takes its published ones again",
            )

    return check
