"""Applies all waiting slices, up to the end of the hours that a person chooses."""

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task
from cdc_dag import configured_settings, database_tag, default_args, runbook
from cdc_params import moment_of, refuse_unknown, tables, until
from cdc_timetable import HoursOnRequest

SETTINGS = configured_settings()
HOUR = timedelta(hours=1)
FIELDS = {"tables": tables(SETTINGS), "until": until()}

with DAG(
    dag_id="cdc_backfill",
    description="Applies every slice that waits, from the Snapshot Cutoff Time on, a backlog in few commits",
    doc_md=runbook("cdc_backfill"),
    schedule=HoursOnRequest(),
    params=FIELDS,
    tags=["cdc", database_tag(SETTINGS)],
    default_args=default_args(retries=100, waits_for_lease=True),
    max_active_runs=1,
    catchup=False,
):

    @task(max_active_tis_per_dag=1, execution_timeout=timedelta(hours=6))
    def apply_backlog(
        params: Any = None, partition_date: datetime | None = None, dag_run: Any = None
    ) -> list[dict[str, Any]]:
        from cdc_pipeline.wiring import opened_pipeline

        refuse_unknown(dag_run.conf, FIELDS)
        limits = [moment_of(params["until"])] if params["until"] else []
        if partition_date is not None:
            limits.append(partition_date + HOUR)
        with opened_pipeline() as pipeline:
            names = pipeline.table_names(tuple(params["tables"]))
            return pipeline.slice_runs().backfill(names, until=min(limits, default=None))

    apply_backlog()
