"""What the DAGs share: the pipeline that they are made from, the assets, and which errors are worth another try."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.sdk import Asset, ExceptionRetryPolicy, RetryRule
from airflow.sdk.definitions.retry_policy import RetryAction

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
from cdc_pipeline.settings.file import load_settings, settings_path

RETRYABLE = (LakeError, ObjectStoreAway, SourceAway, SourceBusy, StoreAway, StreamMoved, OSError)
WITHOUT_A_PAUSE = (StoreAway, OSError)
MANUAL = "manual"
AFTER_AN_ERROR = timedelta(seconds=10)
AFTER_A_KILL = timedelta(seconds=5)
FOR_THE_LEASE = timedelta(seconds=5)


def configured_settings() -> Settings:
    return load_settings(settings_path(None, os.environ))


def runbook(name: str) -> str:
    """Path of the text that Airflow shows with the DAG."""
    return str(Path(__file__).parent.parent / "dags" / "runbooks" / f"{name}.md")


def asset(settings: Settings, table: TableName, what: str, **more: Any) -> Asset:
    """`what` is `slices` or `lake`."""
    return Asset(
        name=f"{settings.name}/{table}/{what}", uri=f"x-cdc://{settings.name}/{quote(str(table))}/{what}", **more
    )


def changed_tables(settings: Settings, **more: Any) -> Asset:
    """Updated when tables ask for a snapshot by themselves."""
    return Asset(name=f"{settings.name}/changed", uri=f"x-cdc://{settings.name}/changed", **more)


def default_args(*, retries: int = 5, waits_for_lease: bool = False, pauses: bool = False) -> dict[str, Any]:
    """Tries again what may pass by itself; a wrong setting or a damaged file fails at once and waits for a person.

    With `pauses` the metadata store remembers a failure and when to try again, unless it is the store that is away.
    """
    passing = WITHOUT_A_PAUSE if pauses else RETRYABLE
    again = [RetryRule(exception=list(passing), retry_delay=AFTER_AN_ERROR, reason="may pass by itself")]
    if waits_for_lease:
        again.append(RetryRule(exception=LeaseBusy, retry_delay=FOR_THE_LEASE, reason="somebody else works on it"))
    give_up = RetryRule(exception=Exception, action=RetryAction.FAIL, reason="no retry mends it")
    return {
        "owner": "cdc",
        "retries": retries,
        "retry_delay": AFTER_A_KILL,
        "retry_policy": ExceptionRetryPolicy(rules=[*again, give_up]),
    }


def database_tag(settings: Settings) -> str:
    return f"db:{settings.tables[0].table.database}"
