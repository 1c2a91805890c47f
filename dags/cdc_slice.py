"""One DAG per table: applies its waiting slices to the lake, within seconds of their registration."""

import zlib
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, AssetOrTimeSchedule, AssetWatcher, CronTriggerTimetable, get_parsing_context, task
from cdc_dag import asset, configured_settings, database_tag, default_args, is_by_hand, runbook
from cdc_params import refuse_unknown
from cdc_slice_run import SliceRun
from cdc_trigger import LONGEST_TRY, SliceReadyTrigger

from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.dag_ids import slice_dag_id

LONGEST_RUN = timedelta(hours=2)
"""The scheduler then ends a run whose task process hangs. It counts the hours too in which Airflow stood still."""


def slice_dag(settings: Settings, table: TableName) -> DAG:
    ready = AssetWatcher(name="slice_ready", trigger=SliceReadyTrigger(pipeline=settings.name, table=str(table)))
    minute = zlib.crc32(str(table).encode()) % 60
    lake = asset(settings, table, "lake")
    with DAG(
        dag_id=slice_dag_id(table),
        description=f"Applies the waiting slices of {table} to the lake",
        doc_md=runbook("cdc_slice"),
        schedule=AssetOrTimeSchedule(
            assets=[asset(settings, table, "slices", watchers=[ready])],
            timetable=CronTriggerTimetable(f"{minute} * * * *", timezone="UTC"),
        ),
        tags=["cdc", database_tag(settings)],
        default_args=default_args(pauses=True),
        max_active_runs=2,  # with one, a parse of this file may hold the DAG back: see docs/decisions.md
        dagrun_timeout=LONGEST_RUN if settings.worker.runs == "task" or settings.worker.updates_lake_asset else None,
        catchup=False,
    ) as dag:
        if settings.worker.runs == "resident":
            SliceRun(task_id="slice_to_lake", settings=settings, table=table, lake=lake, execution_timeout=LONGEST_TRY)
            return dag

        @task(outlets=[lake], execution_timeout=LONGEST_TRY)
        def slice_to_lake(outlet_events: Any = None, dag_run: Any = None) -> dict[str, Any]:
            from cdc_pipeline.wiring import opened_pipeline

            refuse_unknown(dag_run.conf, ())
            with opened_pipeline() as pipeline:
                report = pipeline.slice_run(table, by_hand=is_by_hand(dag_run.run_type))
            outlet_events[lake].extra = report
            return report

        slice_to_lake()
    return dag


SETTINGS = configured_settings()
for name in (found.table for found in SETTINGS.tables):
    if get_parsing_context().dag_id in (None, slice_dag_id(name)):
        slice_dag(SETTINGS, name)
