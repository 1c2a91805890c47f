"""Daily maintenance: merges the lake's small files, and deletes files and rows that are no longer needed."""

from typing import Any
from urllib.parse import quote, unquote

from airflow.sdk import DAG, CronTriggerTimetable, task
from cdc_dag import configured_settings, database_tag, default_args, runbook
from cdc_params import maintained_tables, refuse_unknown

from cdc_pipeline.record import TableName

SETTINGS = configured_settings()

with DAG(
    dag_id="cdc_maintenance",
    description="Merges the lake's small files, and deletes files and metadata that are older than pipeline.yml keeps",
    doc_md=runbook("cdc_maintenance"),
    schedule=CronTriggerTimetable("17 3 * * *", timezone="UTC"),
    tags=["cdc", database_tag(SETTINGS)],
    default_args=default_args(),
    max_active_runs=1,
    catchup=False,
    user_defined_filters={"unquote": unquote},
):

    @task
    def choose_tables(dag_run: Any = None) -> list[str]:
        refuse_unknown(dag_run.conf, ())
        # Airflow renders each of these texts as a Jinja template: quoted, a name has no character that begins one.
        return [quote(str(table)) for table in maintained_tables(SETTINGS)]

    @task(max_active_tis_per_dag=1, map_index_template="{{ task.op_kwargs['quoted_table'] | unquote }}")
    def maintain_table(quoted_table: str) -> dict[str, Any]:
        from cdc_pipeline.wiring import opened_pipeline

        table = TableName.parse(unquote(quoted_table))
        with opened_pipeline() as pipeline:
            return pipeline.maintenance().maintain(table)

    @task
    def delete_old(dag_run: Any = None) -> dict[str, Any]:
        from cdc_pipeline.wiring import opened_pipeline

        refuse_unknown(dag_run.conf, ())
        with opened_pipeline() as pipeline:
            cleaning = pipeline.cleanup().clean()
        return {"held_by": dict(cleaning.held_by)} | {found.kind: found.count for found in cleaning.kinds}

    delete_old()
    # A list that this file made would be another one when pipeline.yml has changed before a task is cleared.
    maintain_table.expand(quoted_table=choose_tables())
