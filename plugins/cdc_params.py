"""The fields of the DAGs' forms, each with its title, description and range."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from airflow.sdk import Param, get_parsing_context
from airflow.sdk.configuration import conf

from cdc_pipeline.errors import SettingsError, UsageError
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings

WHAT = "What"
HOW = "How"
OTHER_TASK_SLOTS = 2
"""Task slots of Airflow that are not for workers: one is for the orchestrator, and one stays free for slices."""
_OF_AIRFLOW = {"openlineage"}
"""Names that Airflow's operator adds to the `conf` of a run that it starts, where OpenLineage is installed."""


def refuse_unknown(conf: Mapping[str, Any] | None, fields: Iterable[str]) -> None:
    """Raises UsageError for a name in the run's `conf` that no field has: Airflow would run with the field's default.

    `fields`: as the DAG declares them, because Airflow adds the names of `conf` to the `params` of a task.
    """
    known = sorted(fields)
    if unknown := sorted(set(conf or {}) - set(known) - _OF_AIRFLOW):
        raise UsageError(
            f"the run's conf has {', '.join(unknown)}, which the DAG does not know",
            expected=f"only {', '.join(known)}" if known else "no names",
            remedy="start another run with the right names",
        )


def tables(settings: Settings) -> Param:
    """The form refuses other names. In a task's process the task does: Airflow would retry an error of the schema."""
    names = [table.name for table in settings.tables]
    is_task = get_parsing_context().task_id is not None
    return Param(
        names,
        type="array",
        items={"type": "string"} if is_task else {"type": "string", "enum": names},
        examples=names,
        minItems=1,
        uniqueItems=True,
        title="Tables",
        description="The tables of pipeline.yml, as database.schema.table; remove those that you do not want.",
        section=WHAT,
    )


def until() -> Param:
    return Param(
        None,
        type=["null", "string"],
        format="date-time",
        title="Until",
        description="Apply only slices whose interval begins before this time; empty: everything that is registered.",
        section=WHAT,
    )


def moment_of(until: str) -> datetime:
    """Returns what the field holds. A date-time may have small letters and a leap second, which Python does not read.

    Raises UsageError for the latter.
    """
    try:
        return datetime.fromisoformat(until.upper())
    except ValueError as error:
        raise UsageError(
            f"{until!r} is no time: {error}", expected="such as 2026-01-31T12:00:00Z", remedy="correct it"
        ) from error


def snapshot_fields(settings: Settings) -> dict[str, Param]:
    return {
        "tables": tables(settings),
        "concurrency": _worker_slots(settings),
        "target_file_mb": _target_file_mb(settings),
        "poll_seconds": _poll_seconds(settings),
    }


def _worker_slots(settings: Settings) -> Param:
    most = max(1, conf.getint("core", "parallelism") - OTHER_TASK_SLOTS)
    return Param(
        min(settings.snapshot.concurrency, most),
        type="integer",
        minimum=1,
        maximum=most,
        title="Worker slots",
        description=f"How many tasks run at the same time. This Airflow allows {most}: core.parallelism minus"
        f" {OTHER_TASK_SLOTS}, so that slices are still applied.",
        section=HOW,
    )


def chosen_slots(params: Mapping[str, Any]) -> int:
    """Returns the number of worker slots that the form has.

    Raises SettingsError if Airflow runs one task at a time: the orchestrator would wait for them for ever.
    """
    if conf.getint("core", "parallelism") == 1:
        raise SettingsError(
            "core.parallelism of this Airflow is 1",
            expected="at least 2: an orchestrator and a worker slot run side by side",
            remedy="set AIRFLOW__CORE__PARALLELISM and start Airflow again, or run cdc snapshot",
        )
    return int(params["concurrency"])


def _target_file_mb(settings: Settings) -> Param:
    default = max(1, settings.snapshot.target_file_bytes >> 20)
    return Param(
        default,
        type="integer",
        minimum=1,
        maximum=max(2048, default),
        title="Size of the lake's files (MB)",
        description="Approximate size of each file after compaction.",
        section=HOW,
    )


def _poll_seconds(settings: Settings) -> Param:
    return Param(
        max(1, round(settings.snapshot.poll_interval.total_seconds())),
        type="integer",
        minimum=1,
        maximum=600,
        title="Poll interval (seconds)",
        description="How often the orchestrator checks the progress of the worker slots.",
        section=HOW,
    )


def maintained_tables(settings: Settings) -> list[TableName]:
    """Returns the tables of which each has a task in a run of the maintenance.

    Raises SettingsError if they are more than Airflow expands.
    """
    most, tables = conf.getint("core", "max_map_length", fallback=1024), [each.table for each in settings.tables]
    if len(tables) > most:
        raise SettingsError(
            f"pipeline.yml has {len(tables)} tables, and core.max_map_length of this Airflow is {most}",
            expected="a task for each table",
            remedy="raise AIRFLOW__CORE__MAX_MAP_LENGTH, also of the API server, and start Airflow again",
        )
    return tables
