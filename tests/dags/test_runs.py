"""Each DAG run by Airflow over a real source, metadata store and Spark."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc_pipeline.errors import SnapshotError, SourceError
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.record import TableName
from cdc_pipeline.settings.dag_ids import slice_dag_id
from cdc_pipeline.settings.retry_policy import RetryPolicy
from cdc_pipeline.wiring import Pipeline
from snapshot.hand_offs import SlotOrder, to_json
from snapshot.wiring import snapshot_runs
from tests.dags.airflow_process import Airflow, DagRuns
from tests.support.pipelines import (
    POLL,
    consume,
    lake_rows,
    opened_pipeline,
    pipeline_settings,
    set_up_and_consume,
    take_snapshot,
)
from tests.support.postgres import fresh_store
from tests.support.snapshot_tasks import REMEMBER_A_FAILURE
from tests.support.streams import run_sql

pytestmark = pytest.mark.xdist_group("airflow")

CREATE = "CREATE TABLE items (id int PRIMARY KEY, name text); INSERT INTO items VALUES (1, 'one'), (2, 'two')"
TASKS_OF_A_SMALL_TABLE = 2
EVERYTHING = "every event that is registered is applied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A pipeline whose servers run, and an Airflow that finds it by environment."""

    pipeline: Pipeline
    source_url: str
    dag_runs: DagRuns
    environment: Mapping[str, str]

    @property
    def items(self) -> TableName:
        return self.pipeline.table_names()[0]

    @property
    def slice_dag(self) -> str:
        return slice_dag_id(self.items)

    def run(self, dag_id: str, left_to_others: str = "", **conf: Any) -> Any:
        return self.dag_runs.run(dag_id, conf, self.environment, left_to_others)

    def change(self, *statements: str) -> None:
        """Each registered as a slice of its own."""
        for statement in statements:
            run_sql(self.source_url, statement)
            consume(self.pipeline)

    def lake(self) -> list[tuple[int, str]]:
        return sorted((row["id"], row["name"]) for row in lake_rows(self.pipeline, self.items))


@pytest.fixture
def installation(
    postgres: PostgresServer, database: str, spark_url: str, tmp_path: Path, dag_runs: DagRuns
) -> Iterator[Installation]:
    run_sql(database, CREATE)
    settings = pipeline_settings(tmp_path, database, [{"name": "public.items"}], snapshot={"concurrency": 1})
    config = tmp_path / "pipeline.yml"
    config.write_text(
        yaml.safe_dump(settings.model_dump(mode="json", exclude={"worker", "slice_length", "snapshot", "keep"}))
    )
    with (
        fresh_store(postgres) as store_url,
        opened_pipeline(settings, store_url=store_url, spark_url=spark_url) as pipeline,
    ):
        environment = {
            "CDC_CONFIG": str(config),
            "CDC_HOME": str(tmp_path / "home"),
            "CDC_WORKER__RUNS": "task",
            "CDC_METADATA_STORE": store_url,
            "CDC_SPARK": spark_url,
        }
        yield Installation(pipeline=pipeline, source_url=database, dag_runs=dag_runs, environment=environment)


def test_a_slice_run_by_hand_applies_what_waits_and_leaves_as_a_success_while_somebody_else_works(
    installation: Installation,
) -> None:
    set_up_and_consume(installation.pipeline)
    early = installation.run(installation.slice_dag)
    assert early["state"] == "success"
    assert early["results"]["slice_to_lake[-1]"]["ended"] == "the table has no published snapshot yet"
    take_snapshot(installation.pipeline, installation.items)
    installation.change("INSERT INTO items VALUES (3, 'three')", "UPDATE items SET name = 'changed' WHERE id = 1")
    table_id = installation.pipeline.store.tables.table(installation.items).table_id
    lease = installation.pipeline.store.leases.acquire(table_id, owner="another", duration=timedelta(minutes=10))
    busy = installation.run(installation.slice_dag)
    assert busy["state"] == "success"
    assert "is held by another" in busy["results"]["slice_to_lake[-1]"]["ended"]
    assert installation.lake() == [(1, "one"), (2, "two")]
    an_hour = RetryPolicy(first_pause=timedelta(hours=1), longest_pause=timedelta(hours=1))
    installation.pipeline.store.failures.record(lease, "it is broken", retry_policy=an_hour, is_outage=False)
    installation.pipeline.store.leases.release(lease)
    assert "it is broken" in installation.pipeline.slice_runs().run(installation.items)["ended"]
    applied = installation.run(installation.slice_dag)
    assert applied["state"] == "success"
    report = applied["results"]["slice_to_lake[-1]"]
    assert (report["claims"], report["inserted"], report["updated"], report["ended"]) == (1, 1, 1, EVERYTHING)
    assert installation.lake() == [(1, "changed"), (2, "two"), (3, "three")]
    assert installation.pipeline.store.failures.failing(table_id) is None


def test_a_snapshot_run_publishes_what_its_worker_slots_made(installation: Installation) -> None:
    set_up_and_consume(installation.pipeline)
    with worker_slot(installation.pipeline) as working:
        # The form's schema takes 5.0 as an integer too.
        ended = installation.run("cdc_snapshot", "work_slot", concurrency=2.0, poll_seconds=1.0, target_file_mb=5.0)
        assert ended["state"] == "success"
        assert working.result() == TASKS_OF_A_SMALL_TABLE
    assert sorted(ended["tasks"]) == ["begin[-1]", "orchestrate[-1]", "work_slot[0]", "work_slot[1]"]
    (published,) = ended["results"]["orchestrate[-1]"]
    assert (published["table"], published["rows"]) == (str(installation.items), 2)
    assert installation.lake() == [(1, "one"), (2, "two")]


def test_an_orchestrator_killed_after_its_last_publication_begins_no_other(
    installation: Installation,
) -> None:
    pipeline, names = installation.pipeline, [str(installation.items)]
    runs = snapshot_runs(pipeline, target_file_bytes=1 << 20, poll_interval=POLL)
    begun, other = runs.begin(names, 2)
    assert (begun["slot"], other["slot"], begun["chosen"]) == (0, 1, names)
    with worker_slot(pipeline):
        first = runs.orchestrate([begun, other])
    assert runs.orchestrate([begun, other]) == first
    assert runs.work(begun) == 0


def test_a_snapshot_run_ends_red_if_the_source_refuses_one_of_its_tables(installation: Installation) -> None:
    pipeline, names = installation.pipeline, [str(installation.items)]
    runs = snapshot_runs(pipeline, target_file_bytes=1 << 20, poll_interval=POLL)
    refused = SourceError("items has no key", remedy="give it one")
    gone = TableName.parse("shop.public.gone")
    half = replace(
        runs,
        table_names=lambda chosen: (*pipeline.table_names(chosen), *((gone,) if not chosen else ())),
        set_up=lambda tables: {**runs.set_up([name for name in tables if name != gone]), gone: refused},
    )
    (order,) = half.begin([], 1)
    assert order["chosen"] == names
    with worker_slot(pipeline), pytest.raises(SnapshotError, match=r"shop\.public\.gone: items has no key"):
        half.orchestrate([order])
    assert installation.lake() == [(1, "one"), (2, "two")]


def test_a_snapshot_is_refused_by_an_airflow_that_runs_one_task_at_a_time(
    installation: Installation, airflow: Airflow
) -> None:
    environment = {**installation.environment, "AIRFLOW__CORE__PARALLELISM": "1"}
    with airflow.process("run_dag") as process:
        ended = DagRuns(process).run("cdc_snapshot", {}, environment, "")
    assert "core.parallelism of this Airflow is 1; expected at least 2" in ended["output"]
    assert ended["tasks"]["begin[-1]"] == "failed"


def test_maintenance_is_refused_by_an_airflow_that_makes_fewer_tasks_than_there_are_tables(
    installation: Installation,
) -> None:
    environment = {**installation.environment, "AIRFLOW__CORE__MAX_MAP_LENGTH": "0"}
    ended = installation.dag_runs.run("cdc_maintenance", {}, environment, "")
    assert "pipeline.yml has 1 tables, and core.max_map_length of this Airflow is 0" in ended["output"]
    assert ended["tasks"]["choose_tables[-1]"] == "failed"


@pytest.mark.parametrize("dag_id", ["cdc_snapshot", "cdc_backfill"])
def test_a_run_whose_conf_has_a_misspelt_name_does_not_run_with_the_default_instead(
    installation: Installation, dag_id: str
) -> None:
    set_up_and_consume(installation.pipeline)
    ended = installation.run(dag_id, table=[str(installation.items)])
    assert ended["state"] == "failed"
    table_id = installation.pipeline.store.tables.table(installation.items).table_id
    assert list(installation.pipeline.store.snapshot_history.snapshots(table_id)) == []


def test_a_run_whose_dag_has_no_fields_fails_if_its_conf_has_a_name(installation: Installation) -> None:
    """Whoever writes one expects it to matter, such as `tables`."""
    set_up_and_consume(installation.pipeline)
    maintenance = installation.run("cdc_maintenance", tables=[str(installation.items)])
    assert (maintenance["state"], maintenance["tasks"]["delete_old[-1]"]) == ("failed", "failed")
    assert maintenance["tasks"]["choose_tables[-1]"] == "failed"
    assert "the run's conf has tables, which the DAG does not know; expected no names" in maintenance["output"]
    assert installation.run(installation.slice_dag, until="2026-01-31T12:00:00Z")["state"] == "failed"


def test_a_run_that_began_by_itself_leaves_a_failed_snapshot_its_pause_until_somebody_clears_it(
    installation: Installation, airflow: Airflow
) -> None:
    """As the second run does, for which the watcher's second event waited while the first one failed."""
    set_up_and_consume(installation.pipeline)
    wanted = "UPDATE cdc.source_table SET snapshot_wanted = true"
    run_sql(installation.environment["CDC_METADATA_STORE"], wanted, REMEMBER_A_FAILURE)
    first, cleared = airflow.call("begin_by_itself", **installation.environment)
    assert first == []
    assert cleared[0]["chosen"] == [str(installation.items)]


@contextmanager
def worker_slot(pipeline: Pipeline) -> Iterator["Future[int]"]:
    """One that works while the block runs, until every table has a snapshot."""
    names = tuple(str(name) for name in pipeline.table_names())
    order = to_json(SlotOrder(chosen=names, since=pipeline.store.snapshot_history.now(), slot=7))
    with ThreadPoolExecutor(max_workers=1) as threads:
        yield threads.submit(snapshot_runs(pipeline).work, order)


def test_a_backfill_run_applies_the_backlog_in_one_commit_up_to_the_given_time(installation: Installation) -> None:
    set_up_and_consume(installation.pipeline)
    take_snapshot(installation.pipeline, installation.items)
    installation.change("INSERT INTO items VALUES (3, 'three')", "INSERT INTO items VALUES (4, 'four')")
    early = installation.run("cdc_backfill", until="2024-01-01T00:00:00Z")
    assert early["state"] == "success"
    assert early["results"]["apply_backlog[-1]"][0]["claims"] == 0
    late = installation.run("cdc_backfill", tables=[str(installation.items)])
    assert late["state"] == "success"
    report = late["results"]["apply_backlog[-1]"][0]
    assert (report["claims"], report["inserted"]) == (1, 2)
    assert installation.lake() == [(1, "one"), (2, "two"), (3, "three"), (4, "four")]


@pytest.mark.parametrize(("dag_id", "task"), [("cdc_backfill", "apply_backlog"), ("cdc_snapshot", "begin")])
def test_a_run_of_a_table_that_has_left_the_pipeline_fails_at_once_and_says_so(
    installation: Installation, dag_id: str, task: str
) -> None:
    """The run began before. Airflow parses the DAG again for the task, and names the task meanwhile."""
    parsed_for = {"_AIRFLOW_PARSING_CONTEXT_DAG_ID": dag_id, "_AIRFLOW_PARSING_CONTEXT_TASK_ID": task}
    environment = {**installation.environment, **parsed_for}
    ended = installation.dag_runs.run(dag_id, {"tables": ["shop.public.gone"]}, environment, "")
    assert ended["tasks"][f"{task}[-1]"] == "failed"
    assert "shop.public.gone" in ended["output"]
    assert "SettingsError" in ended["output"]


def test_a_maintenance_run_keeps_the_rows_and_waits_for_nobody(installation: Installation) -> None:
    set_up_and_consume(installation.pipeline)
    first = installation.run("cdc_maintenance")
    assert first["state"] == "success"
    assert first["results"]["maintain_table[0]"]["ended"] == "the table has no lake yet"
    take_snapshot(installation.pipeline, installation.items)
    done = installation.run("cdc_maintenance")
    assert done["results"]["maintain_table[0]"]["ended"] == "done"
    assert done["results"]["delete_old[-1]"]["slice files"] == 0
    assert done["results"]["delete_old[-1]"]["held_by"] == {}
    assert installation.lake() == [(1, "one"), (2, "two")]


def test_a_tables_name_with_braces_is_the_name_of_a_table_and_no_template(
    installation: Installation, tmp_path: Path
) -> None:
    set_up_and_consume(installation.pipeline)
    odd = [str(replace(installation.items, table=name)) for name in ("seven {{ 7*7 }}", "odd {% x", "{# 100%25")]
    settings = yaml.safe_load(Path(installation.environment["CDC_CONFIG"]).read_text())
    settings["tables"] += [{"name": name} for name in odd]
    config = tmp_path / "odd.yml"
    config.write_text(yaml.safe_dump(settings))
    environment = {**installation.environment, "CDC_CONFIG": str(config)}
    done = installation.dag_runs.run("cdc_maintenance", {}, environment, "")
    assert done["state"] == "success"
    tasks = [f"maintain_table[{number}]" for number in range(4)]
    names = [str(installation.items), *odd]
    assert [done["results"][task]["table"] for task in tasks] == names
    assert [done["labels"][task] for task in tasks] == names
