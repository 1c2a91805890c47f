"""Runs one DAG, ID CONF [TASK], task by task in this process, and reports what became of each.

The last argument names a task that is left to somebody else: it counts as done.
"""

import json
import sys
from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select

from tests.dags.airflow_process import report


def results(run_id: str) -> dict[str, Any]:
    query = select(XComModel).where(XComModel.run_id == run_id, XComModel.key == "return_value")
    with create_session() as session:
        return {f"{found.task_id}[{found.map_index}]": found.value for found in session.scalars(query)}


def main() -> None:
    bag = DagBag()
    dag_id, conf, *left_to_others = sys.argv[1:]
    pattern = left_to_others[0] if left_to_others else None
    run = bag.dags[dag_id].test(run_conf=json.loads(conf), logical_date=None, mark_success_pattern=pattern)
    tasks = {f"{found.task_id}[{found.map_index}]": found.state for found in run.get_task_instances()}
    report({"state": run.state, "tasks": tasks, "results": results(run.run_id)})


if __name__ == "__main__":
    main()
