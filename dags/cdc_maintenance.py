"""Upkeep of the lake, once a day: small files merged, files that no kept version names deleted."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, task
from cdc_dag import configured_settings, database_tag, default_args, runbook
from cdc_params import retention_days

from cdc_pipeline.record import TableName

SETTINGS = configured_settings()

with DAG(
    dag_id="cdc_maintenance",
    description="Merges small files and deletes unused ones, one table at a time, under its lease",
    doc_md=runbook("cdc_maintenance"),
    schedule=CronTriggerTimetable("17 3 * * *", timezone="UTC"),
    params={"retention_days": retention_days()},
    tags=["cdc", database_tag(SETTINGS)],
    default_args=default_args(),
    max_active_runs=1,
    catchup=False,
):

    @task(max_active_tis_per_dag=1, map_index_template="{{ task.op_kwargs['table'] }}")
    def maintain_table(table: str, params: Any = None) -> dict[str, Any]:
        from cdc_pipeline.maintenance import maintain
        from cdc_pipeline.opening import opened_pipeline

        with opened_pipeline() as pipeline:
            return maintain(pipeline, TableName.parse(table), timedelta(days=params["retention_days"]))

    maintain_table.expand(table=[table.name for table in SETTINGS.tables])
