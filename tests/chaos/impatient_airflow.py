"""Airflow whose timeouts are short enough for a test, its tasks as the processes that they are, resident workers."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import psutil

from cdc_pipeline.launcher.heartbeat import HEARTBEAT_VARIABLE
from cdc_pipeline.launcher.marked import STACK_VARIABLE, marked
from cdc_pipeline.launcher.processes import WARM_UP, WORKER, Process

SHORTENED = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "4",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
    "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": "2",
    "AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MAX": "2",
}
"""Of 10 s for a look at heartbeats, 5 s between two of them, 5 tries."""
LIMITS = (
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD",
)
"""30 s each, until a task or a scheduler without a heartbeat is taken for dead."""
SECOND_WORKER = "worker-2"
RESIDENT = WORKER, SECOND_WORKER
OPEN_REQUESTS = "SELECT 1 FROM cdc.slice_request WHERE state IN ('requested', 'taken')"
RUNNER, EXECUTOR = "airflow worker -- ", "LocalExecutor"


def impatient(described: Iterable[Process], *, limit_seconds: int) -> tuple[Process, ...]:
    """The processes of a stack, without the first claims that make Spark's later ones quick."""
    shortened = SHORTENED | dict.fromkeys(LIMITS, str(limit_seconds))

    def hurried(process: Process) -> Process:
        is_airflows = "AIRFLOW_HOME" in process.environment
        return replace(process, environment={**process.environment, **shortened}) if is_airflows else process

    return tuple(hurried(process) for process in described if process.name != WARM_UP)


def with_a_second_worker(described: Iterable[Process]) -> tuple[Process, ...]:
    """A second resident worker beside the one that `cdc up` keeps, if it keeps one."""
    return tuple(each for process in described for each in (process, *_second(process)))


def _second(process: Process) -> Iterable[Process]:
    if process.name == WORKER and process.health is not None:
        heartbeat = process.environment[HEARTBEAT_VARIABLE]
        own = str(Path(heartbeat).with_name(f"{SECOND_WORKER}.heartbeat"))
        yield replace(
            process,
            name=SECOND_WORKER,
            environment={**process.environment, HEARTBEAT_VARIABLE: own},
            health=process.health.replace(heartbeat, own),
        )


def holder(owner: str, identity: str) -> psutil.Process | None:
    """The live process of the installation that a claim names as its owner."""
    number = int(owner.split(":")[1])
    process = psutil.Process(number) if psutil.pid_exists(number) else None
    return process if process and is_of(process, identity) else None


def is_of(process: psutil.Process, identity: str) -> bool:
    """Whether the installation has started it: its number may be somebody else's by now."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(STACK_VARIABLE) == identity
    except psutil.Error:
        return False


def running_tasks(identity: str) -> frozenset[str]:
    """Airflow's ids of the tries that have a live process, whatever Airflow thinks of them."""
    titles = (_title(process) for process in marked(identity))
    return frozenset(title.removeprefix(RUNNER) for title in titles if title.startswith(RUNNER))


def _title(process: psutil.Process) -> str:
    """Without those of the executor's own processes, which begin like a task's."""
    try:
        title = " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""
    return "" if EXECUTOR in title else title
