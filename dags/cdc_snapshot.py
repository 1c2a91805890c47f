"""Builds the initial lake as of one Snapshot Cutoff. Also starts by itself for tables whose stream misses a change."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, AssetWatcher, task
from airflow.sdk.configuration import conf
from cdc_dag import changed_tables, chosen_tables, configured_settings, database_tag, default_args, runbook
from cdc_other_task import check_goes_on
from cdc_params import chosen_slots, refuse_unknown, snapshot_fields
from cdc_trigger import SnapshotWantedTrigger

SETTINGS = configured_settings()
WANTED = SnapshotWantedTrigger(pipeline=SETTINGS.name, tables=[str(found.table) for found in SETTINGS.tables])
FIELDS = snapshot_fields(SETTINGS)

with DAG(
    dag_id="cdc_snapshot",
    description="Builds the initial lake of the chosen tables while the source keeps changing",
    doc_md=runbook("cdc_snapshot"),
    schedule=[changed_tables(SETTINGS, watchers=[AssetWatcher(name="snapshot_wanted", trigger=WANTED)])],
    params=FIELDS,
    tags=["cdc", database_tag(SETTINGS)],
    default_args=default_args(),
    max_active_runs=1,
    max_active_tasks=conf.getint("core", "parallelism"),  # the form limits the worker slots
):

    @task
    def begin(params: Any = None, dag_run: Any = None) -> list[dict[str, Any]]:
        from cdc_pipeline.wiring import opened_pipeline
        from snapshot.wiring import snapshot_runs

        refuse_unknown(dag_run.conf, FIELDS)
        with opened_pipeline() as pipeline:
            chosen, is_first = chosen_tables(dag_run.run_type, params), not dag_run.clear_number
            return snapshot_runs(pipeline).begin(chosen, chosen_slots(params), keeps_pauses=is_first)

    @task(priority_weight=100)
    def orchestrate(orders: list[dict[str, Any]], params: Any = None, ti: Any = None) -> list[dict[str, Any]]:
        from cdc_pipeline.wiring import opened_pipeline
        from snapshot.wiring import snapshot_runs

        size, interval = int(params["target_file_mb"]) << 20, timedelta(seconds=params["poll_seconds"])
        with opened_pipeline() as pipeline:
            runs = snapshot_runs(pipeline, target_file_bytes=size, poll_interval=interval)
            return runs.orchestrate(orders, check_goes_on(ti, "work_slot", looks=2))

    @task
    def work_slot(order: dict[str, Any], ti: Any = None) -> int:
        from cdc_pipeline.wiring import opened_pipeline
        from snapshot.wiring import snapshot_runs

        with opened_pipeline() as pipeline:
            return snapshot_runs(pipeline).work(order, check_goes_on(ti, "orchestrate", looks=2))

    begun: Any = begin()
    orchestrate(begun)
    work_slot.expand(order=begun)
