"""Calls `begin` of `cdc_snapshot` as in a run that Airflow started by itself, before and after somebody cleared it."""

from types import SimpleNamespace
from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.utils.types import DagRunType

from tests.dags.airflow_process import report


def main() -> None:
    dag = DagBag().dags["cdc_snapshot"]
    run = SimpleNamespace(run_type=DagRunType.ASSET_TRIGGERED, conf={}, clear_number=0)
    task: Any = dag.get_task("begin")
    begin = task.python_callable
    first = begin(params=dag.params.dump(), dag_run=run)
    run.clear_number += 1
    report([first, begin(params=dag.params.dump(), dag_run=run)])


if __name__ == "__main__":
    main()
