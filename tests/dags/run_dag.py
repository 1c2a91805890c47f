"""Runs one DAG after the other, task by task in this process, and reports what became of each task.

A line is [environment, id, conf, task that is left to somebody else and counts as done].
"""

from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select

from tests.dags.airflow_process import lines, report


def results(run_id: str) -> dict[str, Any]:
    query = select(XComModel).where(XComModel.run_id == run_id, XComModel.key == "return_value")
    with create_session() as session:
        return {f"{found.task_id}[{found.map_index}]": found.value for found in session.scalars(query)}


def run_dag(dag_id: str, conf: dict[str, Any], left_to_others: str) -> dict[str, Any]:
    dag = DagBag().dags[dag_id]
    run = dag.test(run_conf=conf, logical_date=None, mark_success_pattern=left_to_others or None)
    found = {f"{instance.task_id}[{instance.map_index}]": instance for instance in run.get_task_instances()}
    return {
        "state": run.state,
        "tasks": {name: instance.state for name, instance in found.items()},
        "labels": {name: instance.rendered_map_index for name, instance in found.items()},
        "results": results(run.run_id),
    }


def main() -> None:
    for dag_id, conf, left_to_others in lines():
        report(run_dag(dag_id, conf, left_to_others))


if __name__ == "__main__":
    main()
