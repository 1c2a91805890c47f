"""Shared by the DAGs: the settings that they are made from, their assets, and the errors that are retried."""

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.sdk import Asset, ExceptionRetryPolicy, RetryRule
from airflow.sdk.definitions.retry_policy import RetryAction
from airflow.sdk.exceptions import AirflowRuntimeError

from cdc_pipeline.errors import (
    LakeError,
    LeaseBusy,
    ObjectStoreAway,
    SourceAway,
    SourceBusy,
    StoreAway,
    StreamMoved,
)
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.dag_ids import slice_dag_id
from cdc_pipeline.settings.file import load_settings, settings_path

WITHOUT_A_PAUSE = (StoreAway, OSError, AirflowRuntimeError)
"""Airflow raises the last of them if its API server does not answer for ten seconds, as while it is restarted."""
RETRYABLE = (LakeError, ObjectStoreAway, SourceAway, SourceBusy, StreamMoved, *WITHOUT_A_PAUSE)
BY_ITSELF = frozenset({"asset_triggered", "scheduled", "backfill"})
"""Types of the runs that Airflow starts by itself."""
LONGEST_IN_URI = 1400
"""Airflow allows 1500 characters in a URI. The quoted form of a name can have more: up to twelve for each character."""
AFTER_AN_ERROR = timedelta(seconds=10)
AFTER_A_KILL = timedelta(seconds=5)
FOR_THE_LEASE = timedelta(seconds=5)


def configured_settings() -> Settings:
    return load_settings(settings_path(None, os.environ))


def runbook(name: str) -> str:
    """Returns the path of the text that Airflow shows as the DAG's documentation."""
    return str(Path(__file__).parent.parent / "dags" / "runbooks" / f"{name}.md")


def asset(settings: Settings, table: TableName, what: str, **more: Any) -> Asset:
    """Returns the asset of one table. `what`: `slices` or `lake`. Its URI has the DAG's id for a name that is long."""
    quoted = quote(str(table))
    path = quoted if len(quoted) <= LONGEST_IN_URI else slice_dag_id(table)
    return Asset(name=f"{settings.name}/{table}/{what}", uri=f"x-cdc://{settings.name}/{path}/{what}", **more)


def changed_tables(settings: Settings, **more: Any) -> Asset:
    """Returns the asset that is updated when tables need a snapshot because their stream misses a change."""
    return Asset(name=f"{settings.name}/changed", uri=f"x-cdc://{settings.name}/changed", **more)


def default_args(*, retries: int = 5, waits_for_lease: bool = False, pauses: bool = False) -> dict[str, Any]:
    """Returns the arguments of a DAG's tasks: errors that may pass by themselves are retried, all others fail the task.

    `waits_for_lease`: a busy lease is retried too. `pauses`: Airflow retries only an unreachable metadata store or
    API server, and OSError. For other errors, the metadata store has the time of the next try, and the wake-up policy
    starts that run.
    """
    passing = WITHOUT_A_PAUSE if pauses else RETRYABLE
    again = [RetryRule(exception=list(passing), retry_delay=AFTER_AN_ERROR, reason="the error may pass by itself")]
    if waits_for_lease:
        again.append(RetryRule(exception=LeaseBusy, retry_delay=FOR_THE_LEASE, reason="another process has the table"))
    give_up = RetryRule(exception=Exception, action=RetryAction.FAIL, reason="no retry helps")
    return {
        "owner": "cdc",
        "retries": retries,
        "retry_delay": AFTER_A_KILL,
        "retry_policy": ExceptionRetryPolicy(rules=[*again, give_up]),
    }


def is_by_hand(run_type: str) -> bool:
    """Whether somebody started the run: a person by the UI, the API or the command line, or an operator of a DAG."""
    return run_type not in BY_ITSELF


def chosen_tables(run_type: str, params: Mapping[str, Any]) -> Sequence[str] | None:
    """Returns the tables that the form or the `conf` names. None for a run that Airflow started: it has no choice."""
    return params["tables"] if is_by_hand(run_type) else None


def database_tag(settings: Settings) -> str:
    """Returns the tag of the pipeline's DAGs. Airflow allows 100 characters."""
    return f"db:{settings.tables[0].table.database}"[:100]
