"""Airflow's DAG processor, without work that changes nothing.

    python plugins/cdc_dag_processor.py

When a task ends in the triggerer, as a slice run does, Airflow 3.3 asks the DAG processor for the task's callback, also
after a success, for which there is none. For each such request the DAG processor parses the file with the DAGs of all
tables, and then, because it forgets when it had parsed the file before, parses it again and stores all its DAGs.
"""

import gc
import importlib
from typing import Any

GC_THRESHOLDS = 100_000, 20, 100
"""As for the other parts of Airflow (`AIRFLOW_COMMAND` in `cdc_pipeline/launcher/processes.py`)."""
IMPORTS_OF_DAGS = "airflow.sdk", "cdc_pipeline.settings.file"
"""Parsers are forks of the DAG processor: what it has imported, none of them has to."""


def new_dag_processor() -> Any:
    """Returns a DagFileProcessorManager that drops the requests for callbacks of tasks that have succeeded."""
    from airflow.callbacks.callback_requests import CallbackRequest, TaskCallbackRequest
    from airflow.dag_processing.manager import DagFileProcessorManager

    class DagProcessor(DagFileProcessorManager):
        def fetch_callbacks(self) -> list[CallbackRequest]:
            return [request for request in super().fetch_callbacks() if has_callback(request)]

    def has_callback(request: CallbackRequest) -> bool:
        return not isinstance(request, TaskCallbackRequest) or request.is_failure_callback

    return DagProcessor(max_runs=-1)


def main() -> None:
    """Parses DAG files until a signal ends it."""
    gc.set_threshold(*GC_THRESHOLDS)
    from airflow.jobs.dag_processor_job_runner import DagProcessorJobRunner
    from airflow.jobs.job import Job, run_job
    from airflow.utils.process_utils import set_component_mp_start_method

    for name in IMPORTS_OF_DAGS:
        importlib.import_module(name)
    set_component_mp_start_method("dag_processor")
    untyped: Any = Job
    job, processor = untyped(), new_dag_processor()
    DagProcessorJobRunner(job, processor)  # gives the job its type, and the processor its heartbeat

    def execute() -> None:
        try:
            processor.run()
        finally:
            processor.terminate()
            processor.end()

    run_job(job=job, execute_callable=execute)


if __name__ == "__main__":
    main()
