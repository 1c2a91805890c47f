"""The fields of the DAGs' forms, with what a person has to know about each."""

from airflow.sdk import Param
from airflow.sdk.configuration import conf

from cdc_pipeline.settings import Settings

WHAT = "What"
HOW = "How"
PLACES_FOR_OTHERS = 2
"""Of Airflow's places for tasks, one is the orchestrator's and one is left for slices."""
SHORTEST_RETENTION_DAYS = 7


def tables(settings: Settings) -> Param:
    names = [table.name for table in settings.tables]
    return Param(
        names,
        type="array",
        items={"type": "string", "enum": names},
        examples=names,
        minItems=1,
        uniqueItems=True,
        title="Tables",
        description="As db.schema.table in pipeline.yml; all of them unless you take some away.",
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


def worker_slots(settings: Settings) -> Param:
    most = max(1, conf.getint("core", "parallelism") - PLACES_FOR_OTHERS)
    return Param(
        min(settings.snapshot.concurrency, most),
        type="integer",
        minimum=1,
        maximum=most,
        title="Worker slots",
        description=f"How many tasks work side by side. This Airflow has places for {most}: core.parallelism less"
        f" {PLACES_FOR_OTHERS}, so that slices are applied meanwhile.",
        section=HOW,
    )


def target_file_mb(settings: Settings) -> Param:
    return Param(
        max(1, settings.snapshot.target_file_bytes >> 20),
        type="integer",
        minimum=1,
        maximum=2048,
        title="Size of the lake's files (MB)",
        description="About this much in each file after compaction.",
        section=HOW,
    )


def poll_seconds(settings: Settings) -> Param:
    return Param(
        max(1, round(settings.snapshot.poll_interval.total_seconds())),
        type="integer",
        minimum=1,
        maximum=600,
        title="Poll interval (seconds)",
        description="How often the orchestrator looks how far the worker slots are.",
        section=HOW,
    )


def retention_days() -> Param:
    return Param(
        SHORTEST_RETENTION_DAYS,
        type="integer",
        minimum=SHORTEST_RETENTION_DAYS,
        maximum=3650,
        title="Retention (days)",
        description="Files are deleted when no version of the table younger than this names them."
        " It is also how far back readers can travel in time.",
        section=HOW,
    )
