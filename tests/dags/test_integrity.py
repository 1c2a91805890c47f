"""The DAG folder as Airflow parses it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline import errors
from cdc_pipeline.errors import CdcError, LeaseBusy, StoreAway
from cdc_pipeline.launcher.processes import Process
from cdc_pipeline.launcher.project import PROJECT
from cdc_pipeline.record import TableName
from cdc_pipeline.settings.dag_ids import slice_dag_id
from cdc_pipeline.settings.installation.state import write_document
from tests.dags.airflow_process import Airflow
from tests.support.doc_pages import blocks

pytestmark = pytest.mark.xdist_group("airflow")

MOST_LINES = 60
MOST_SECONDS = 2.0
LONGEST_RUN_SECONDS = 7200
LONGEST_FOLDER_NAME = 255
COMMON = {"cdc_snapshot", "cdc_backfill", "cdc_maintenance"}


def params(parsed: Any) -> Iterator[dict[str, Any]]:
    for dag in parsed["dags"].values():
        yield from dag["params"].values()


def test_every_table_has_a_dag_of_its_own_beside_the_common_ones(parsed: Any) -> None:
    assert parsed["import_errors"] == {}
    slices = {name for name in parsed["dags"] if name.startswith("cdc_slice__")}
    assert set(parsed["dags"]) - slices == COMMON
    assert {"cdc_slice__shop__public__orders", "cdc_slice__shop__public__order_items"} < slices
    assert len(slices) == 4


def test_every_dag_says_whose_it_is_what_it_does_and_what_to_do(parsed: Any) -> None:
    for name, dag in parsed["dags"].items():
        assert dag["tags"] == ["cdc", "db:shop"]
        assert dag["owners"] == ["cdc"]
        assert dag["description"]
        assert "| you see | it means | do this |" in dag["doc_md"]
        assert dag["max_active_runs"] == (2 if name.startswith("cdc_slice__") else 1)
        assert dag["has_retry_policy"]


def slice_dags_and_tasks(parsed: Any) -> list[tuple[Any, Any]]:
    dags = [dag["serialised"]["dag"] for name, dag in parsed["dags"].items() if name.startswith("cdc_slice__")]
    assert dags
    return [(dag, task["__var"]) for dag in dags for task in dag["tasks"]]


def test_a_slice_task_that_hangs_is_ended_by_the_scheduler_after_its_own_limit(parses: dict[str, Any]) -> None:
    for dag, task in slice_dags_and_tasks(parses["task processes"]):
        assert task["execution_timeout"] < dag["dagrun_timeout"] == LONGEST_RUN_SECONDS


def test_a_slice_run_of_a_resident_worker_is_ended_by_the_limit_of_its_task_alone(parsed: Any) -> None:
    """The limit of a run also counts the hours of a stop, and is over before anybody has looked at the task."""
    for dag, task in slice_dags_and_tasks(parsed):
        assert task["execution_timeout"] < LONGEST_RUN_SECONDS
        assert dag.get("dagrun_timeout") is None


def test_every_field_of_a_form_has_a_title_a_description_and_a_range(parsed: Any) -> None:
    assert list(params(parsed))
    for schema in params(parsed):
        assert schema["title"]
        assert schema["description"]
        assert schema["section"]
        if schema["type"] == "integer":
            assert schema["minimum"] < schema["maximum"]
        elif schema["type"] == "array":
            assert schema["items"]["enum"] == schema["examples"]
        else:
            assert schema["format"] == "date-time"


def test_a_snapshot_leaves_room_for_its_orchestrator_and_for_slices(parsed: Any) -> None:
    assert parsed["dags"]["cdc_snapshot"]["params"]["concurrency"]["maximum"] == 2


def test_a_snapshot_runs_its_orchestrator_and_all_slots_that_its_form_allows_side_by_side(
    airflow: Airflow, shop_file: str
) -> None:
    """Also in an Airflow that runs fewer tasks of a DAG at a time than tasks."""
    few = {"AIRFLOW__CORE__PARALLELISM": "32", "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "1"}
    (parsed,) = airflow.call("parse_dags", shop_file, **few)
    snapshot = parsed["dags"]["cdc_snapshot"]
    assert snapshot["params"]["concurrency"]["maximum"] + 1 < snapshot["serialised"]["dag"]["max_active_tasks"] == 32


def test_the_form_of_a_snapshot_allows_what_the_settings_say(parses: dict[str, Any]) -> None:
    parsed = parses["large"]
    assert parsed["import_errors"] == {}
    fields = parsed["dags"]["cdc_snapshot"]["params"]
    assert {name: fields[name]["maximum"] for name in ("poll_seconds", "target_file_mb")} == {
        "poll_seconds": 600,
        "target_file_mb": 4096,
    }


def test_a_map_index_of_maintenance_means_one_table_also_when_pipeline_yml_has_changed_since(
    parses: dict[str, Any],
) -> None:
    """The process of a cleared task parses the DAG again: what the DAG then says must not depend on the tables."""
    dags = [parses[name]["dags"]["cdc_maintenance"]["serialised"]["dag"] for name in ("shop", "long names")]
    assert dags[0]["tasks"] == dags[1]["tasks"]


def test_parsing_twice_yields_the_same_dags(airflow: Airflow, shop_file: str, parsed: Any) -> None:
    (again,) = airflow.call("parse_dags", shop_file, PYTHONHASHSEED="7")
    for name, dag in parsed["dags"].items():
        assert json.dumps(again["dags"][name], sort_keys=True) == json.dumps(dag, sort_keys=True)


def test_parsing_is_cheap_and_loads_no_driver(parsed: Any) -> None:
    assert parsed["heavy"] == []
    assert parsed["seconds"] < MOST_SECONDS


def test_a_wrong_pipeline_file_is_shown_with_its_line(parses: dict[str, Any]) -> None:
    parsed = parses["wrong"]
    assert parsed["dags"] == {}
    assert parsed["import_errors"]
    for text in parsed["import_errors"].values():
        assert "line 10" in text
        assert "the key 'lak' is unknown; did you mean 'lake'?" in text


def test_dag_files_stay_thin() -> None:
    files = sorted((PROJECT / "dags").glob("*.py"))
    assert len(files) == 4
    assert [file.name for file in files if len(file.read_text().splitlines()) > MOST_LINES] == []


def test_tables_whose_names_look_alike_have_different_dags() -> None:
    names = [("a", "b__c", "d"), ("a__b", "c", "d"), ("a", "b", "c__d"), ("a", "_b", "c"), ("a_", "b", "c")]
    names += [("a", "b", "ä"), ("a", "b", "-E4-"), ("a", "b", "c d"), ("a", "b", "c")]
    ids = [slice_dag_id(TableName(database=db, schema=schema, table=table)) for db, schema, table in names]
    assert len(set(ids)) == len(names)
    assert all(name.replace("_", "").replace("-", "").isalnum() and name.isascii() for name in ids)


def test_a_long_name_has_a_dag_of_its_own_and_stops_no_other(parses: dict[str, Any]) -> None:
    parsed = parses["long names"]
    assert parsed["import_errors"] == {}
    slices = [name for name in parsed["dags"] if name.startswith("cdc_slice__-8868-")]
    assert len(slices) == 2
    assert all(len(f"dag_id={name}") <= LONGEST_FOLDER_NAME for name in slices)


def test_exactly_the_errors_that_may_pass_by_themselves_are_tried_again(airflow: Airflow) -> None:
    decided = airflow.call("decide_retries")
    assert set(decided.pop("AirflowRuntimeError").values()) == {"retry"}
    assert {"CdcError", "LeaseBusy", "StoreAway"} < set(decided)
    for name, of in decided.items():
        error: type[CdcError] = getattr(errors, name)
        assert of["slice"] == ("retry" if error is StoreAway else "fail"), name
        assert of["maintenance"] == ("retry" if error.retryable else "fail"), name
        assert of["backfill"] == ("retry" if error.retryable or error is LeaseBusy else "fail"), name


def test_the_documented_commands_clean_the_history_of_the_airflow_that_cdc_up_started(
    airflow: Airflow, tmp_path: Path
) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / ".cdc").mkdir()
    process = Process(name="scheduler", waits_for="", command=(), environment=airflow.environment)
    write_document(tmp_path / ".cdc" / "plan.json", [asdict(process)])
    find_airflow, clean, *_ = blocks("docs/how-to/airflow.md", "text", "## Airflow's own history")
    ended = subprocess.run(
        ["bash", "-ec", find_airflow + clean],
        cwd=tmp_path,
        env={"PATH": os.defpath, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Checking table dag_run" in ended.stdout
