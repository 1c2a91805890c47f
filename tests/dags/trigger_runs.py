"""Runs slice DAGs in a real triggerer, and reports each task's state, result and log.

A line is [environment, type of the runs, id of each DAG…].

`is_parsed`: whether the DAG processor would parse the DAG's file for the task's callback.

What a scheduler does for them is done here: it makes the runs, and hands their tasks to the triggerer. The DAGs are
parsed again while the runs go on: `is_held_back` says whether Airflow would make no further run of the DAG after that.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from airflow.configuration import conf
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
from airflow.jobs.job import Job
from airflow.jobs.triggerer_job_runner import TriggererJobRunner, TriggerRunnerSupervisor
from airflow.models.dag import DagModel
from airflow.models.dagbag import DBDagBag
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from cdc_dag_processor import new_dag_processor
from sqlalchemy import select

from tests.dags.airflow_process import lines, report

LONGEST_SECONDS = 600
DEFERRED = "deferred"
LAST_LINE = "trigger completed"
"""What Airflow writes behind the last line of a trigger. Lines and results of triggers come in two ways."""
PRINTED = Path(conf.get("logging", "base_log_folder")) / "printed"
"""What the triggerer prints. Among it are the lines of a trigger that it read after the trigger's end."""


def store_dags() -> None:
    untyped: Any = DagBundlesManager
    manager = untyped()
    with create_session() as session:
        manager.sync_bundles_to_db(session=session)
    for bundle in manager.get_all_dag_bundles():
        bundle.initialize()
        bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
        sync_bag_to_db(bag, bundle.name, bundle.version)


def begin(dag_id: str, run_id: str, run_type: DagRunType) -> None:
    with create_session() as session:
        dag: Any = DBDagBag().get_latest_version_of_dag(dag_id, session=session)
        run = dag.create_dagrun(
            run_id=run_id,
            run_after=datetime.now(UTC),
            run_type=run_type,
            triggered_by=DagRunTriggeredByType.TEST,
            state=DagRunState.RUNNING,
            session=session,
        )
        run.dag = dag
        waiting, _ = run.update_state(session=session)
        run.schedule_tis(waiting, session=session)


def states(run_id: str) -> dict[str, str]:
    with create_session() as session:
        found = session.scalars(select(TaskInstance).where(TaskInstance.run_id == run_id))
        return {task.dag_id: str(task.state) for task in found}


def result(dag_id: str, run_id: str) -> Any:
    query = select(XComModel.value).where(XComModel.dag_id == dag_id, XComModel.run_id == run_id)
    with create_session() as session:
        found = session.scalars(query.where(XComModel.key == "return_value")).one_or_none()
    return found and json.loads(found)


def is_held_back(dag_id: str) -> bool:
    """Whether Airflow would make no other run of this DAG."""
    with create_session() as session:
        return bool(session.scalars(select(DagModel.exceeds_max_non_backfill).filter_by(dag_id=dag_id)).one())


def log_of(dag_id: str, run_id: str) -> str:
    files = sorted(PRINTED.parent.glob(f"dag_id={dag_id}/run_id={run_id}/**/*.log*"))
    printed = (line for line in PRINTED.read_text().splitlines() if dag_id in line)
    return "\n".join([*(path.read_text() for path in files), *printed])


@contextmanager
def printing() -> Iterator[None]:
    """What this process and its children print goes into the file PRINTED."""
    shown = os.dup(1)
    PRINTED.parent.mkdir(parents=True, exist_ok=True)
    with PRINTED.open("wb") as file:
        os.dup2(file.fileno(), 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(shown, 1)
            os.close(shown)


def dags_with_callbacks() -> set[str]:
    processor = new_dag_processor()
    processor.load_dag_bundles()
    return {request.ti.dag_id for request in processor.fetch_callbacks()}


def run_all(run_type: str, dag_ids: list[str]) -> dict[str, Any]:
    run_id = f"{run_type}__{time.time_ns()}"
    store_dags()
    for dag_id in dag_ids:
        begin(dag_id, run_id, DagRunType(run_type))
    store_dags()
    untyped: Any = Job
    job = untyped()
    TriggererJobRunner(job, capacity=10)
    job.prepare_for_execution()
    deadline = time.monotonic() + LONGEST_SECONDS

    def is_ended() -> bool:
        return DEFERRED not in states(run_id).values() and all(LAST_LINE in log_of(dag, run_id) for dag in dag_ids)

    with printing():
        triggerer = TriggerRunnerSupervisor.start(job=job, capacity=10, logger=structlog.get_logger())
        try:
            while not is_ended() and time.monotonic() < deadline:
                triggerer.run_once()
        finally:
            triggerer.kill(force=True)
    ended, parsed = states(run_id), dags_with_callbacks()
    return {
        dag: {
            "state": ended[dag],
            "result": result(dag, run_id),
            "log": log_of(dag, run_id),
            "is_held_back": is_held_back(dag),
            "is_parsed": dag in parsed,
        }
        for dag in ended
    }


def main() -> None:
    for run_type, *dag_ids in lines():
        report(run_all(run_type, dag_ids))


if __name__ == "__main__":
    main()
