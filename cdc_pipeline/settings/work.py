"""Sections of pipeline.yml about the work and about retention, and how durations are written."""

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from cdc_pipeline.settings.libpq import is_this_machine
from cdc_pipeline.settings.retry_policy import RetryPolicy

_DURATION = re.compile(r"(\d{1,6})\s*(s|m|h|d)", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SHORTEST_KEPT, _LONGEST_KEPT = timedelta(days=1), timedelta(days=36_500)
EMBEDDED = "embedded"
"""Stands for a server that the pipeline itself starts, in place of its URL."""
ENCRYPTION = "spark.network.crypto.enabled"
_THE_PIPELINES_OWN = (
    *("spark.master", "spark.driver.host", "spark.driver.bindAddress", "spark.driver.memory", "spark.connect."),
    *("spark.sql.extensions", "spark.sql.catalog.spark_catalog", "spark.sql.session.timeZone", "spark.delta.logStore."),
    "spark.databricks.delta.commit.",
)
_MASTER = re.compile(r"local\[(\*|[1-9][0-9]*)\]|spark://[^/\s,@]+:[0-9]+(,[^/\s,@]+:[0-9]+)*")
_SPARK_CONNECT = re.compile(
    r"sc://(?:[^\s/;:@?#\[\]]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?(?:/(?:;[^\s;=?#]+=[^\s;=?#]+)*)?"
)
_HIGHEST_PORT = 65_535
_SECRET = re.compile(r"secret|password|token|credential|access\.?key", re.IGNORECASE)


def spark_url(value: str) -> str:
    """Raises ValueError for what is neither `embedded` nor the URL of a Spark Connect server."""
    found = _SPARK_CONNECT.fullmatch(value)
    if value != EMBEDDED and (found is None or int(found[1] or 0) > _HIGHEST_PORT):
        address = value.partition(";")[0]  # what follows may hold the token
        raise ValueError(
            f"{address!r} is neither embedded nor sc://host:port; for a cluster write driver.master, and parameters as"
            " sc://host:port/;name=value;name=value, with %3D for = in a value"
        )
    return value


def parse_duration(value: object) -> timedelta:
    """Parses `90s`, `5m`, `2h`, `7d`. Raises ValueError for anything else."""
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(str(value).strip())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{value!r} is not a duration: write a whole number and s, m, h or d, such as 60s or 5m")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


Duration = Annotated[
    timedelta, BeforeValidator(parse_duration), WithJsonSchema({"type": "string", "pattern": f"^{_DURATION.pattern}$"})
]

StreamPartitions = Annotated[
    int,
    Field(
        ge=1,
        le=64,
        description="parts, by a hash of the id, that get slice files of their own; at most 64. It cannot change later",
    ),
]
"""Of databases, whose log is one stream."""


class Frozen(BaseModel):
    """A section of pipeline.yml: immutable, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceSettings(Frozen):
    """What the sections about a source have in common. `unfit_table_settings`: settings of a table, and why not."""

    unfit_table_settings: ClassVar[Mapping[str, str]]
    kind: str
    slice_rows: int = Field(default=200_000, ge=1, description="a slice is also cut at this many rows, or transactions")

    def folders(self, base: Path) -> tuple[Path, ...]:
        """Local folders that are read. Relative paths start at `base`."""
        del base
        return ()

    @property
    def uses_aws(self) -> bool:
        """Whether the consumer needs credentials of AWS, or of a server with its protocol."""
        return False


class SourceWithoutUrl(SourceSettings):
    """A source that has no server, or is reached in another way than by one URL."""

    @property
    def url(self) -> str:
        return ""


class SnapshotSettings(Frozen):
    """How the initial lake is built."""

    concurrency: int = Field(
        default=2, ge=1, le=64, description="worker slots: tasks of a snapshot that run side by side; at most 64"
    )
    snapshot_file_bytes: int = Field(
        default=32 << 20,
        ge=1 << 13,
        description="source bytes of a data file; with data partitions, a slot may hold four times it, at least 64 MB",
    )
    target_file_bytes: int = Field(
        default=128 << 20, ge=1 << 10, description="size of the lake's files that a snapshot writes, compressed"
    )
    poll_interval: Duration = Field(
        default=timedelta(seconds=10),
        le=timedelta(minutes=10),
        description="longest time between two looks of the orchestrator at its tasks; at most 10m",
    )


class DriverSettings(Frozen):
    """The embedded Spark driver."""

    memory: str = Field(
        default="2g", pattern=r"^[1-9][0-9]*[mg]$", description="heap of its Java virtual machine: a number and m or g"
    )
    java_options: str = Field(
        default="-XX:+UseParallelGC",
        description="options of its Java virtual machine. A backlog takes a seventh less time with the parallel garbage"
        " collector than with Java's usual one. Its pauses grow with the driver's memory:"
        " with more than 8 GB, `-XX:+UseG1GC`",
    )
    master: str = Field(
        default="local[*]",
        description="who runs the driver's tasks: its own threads, or a standalone cluster at `spark://host:port`",
    )
    host: str = Field(default="127.0.0.1", description="under which a cluster's executors reach the driver")
    spark: dict[str, str] = Field(default={}, description="further settings of Spark, instead of the pipeline's own")

    @field_validator("master")
    @classmethod
    def _driver_or_cluster(cls, master: str) -> str:
        if _MASTER.fullmatch(master) is None:
            raise ValueError(f"{master!r} is not a master: write local[*], local[4] or spark://host:port")
        return master

    @field_validator("spark")
    @classmethod
    def _not_what_correctness_needs(cls, settings: dict[str, str]) -> dict[str, str]:
        for name in settings:
            if not name.startswith("spark."):
                message = f"{name!r} is not a setting of Spark: their names begin with 'spark.'"
                raise ValueError(message)
            if name.startswith(_THE_PIPELINES_OWN):
                message = f"{name} is set by the pipeline, and its guarantees need that value: remove it"
                raise ValueError(message)
            if _SECRET.search(name):
                message = f"{name} is a secret, which arguments would show: write it into spark-defaults.conf"
                raise ValueError(message)
        return settings

    @model_validator(mode="after")
    def _encrypted_between_machines(self) -> "DriverSettings":
        masters = self.master.removeprefix("spark://").split(",") if self.on_a_cluster else []
        hosts = {master.rpartition(":")[0].strip("[]") for master in masters}
        if ENCRYPTION not in self.spark and not all(map(is_this_machine, hosts)):
            message = (
                f'{self.master} is on another machine: write {ENCRYPTION}: "true" under driver.spark,'
                ' or "false" where the network between is trusted'
            )
            raise ValueError(message)
        return self

    @property
    def on_a_cluster(self) -> bool:
        return not self.master.startswith("local")


class WorkerSettings(Frozen):
    """How slices are applied."""

    runs: Literal["resident", "task"] = Field(
        default="resident",
        description="who applies the slices of a slice run: a resident worker (`cdc work`), which runs already, or the"
        " run's own task process in Airflow, where no resident worker can be kept running",
    )
    slots: int = Field(default=2, ge=1, le=64, description="tables that one resident worker applies side by side")
    run_length: Duration = Field(
        default=timedelta(minutes=5),
        le=timedelta(minutes=30),
        description="a slice run of a resident worker stays open for this long and applies slices as they come; at most"
        " 30m. A run that a person triggers, or that updates the asset, ends when nothing waits",
    )
    updates_lake_asset: bool = Field(
        default=False,
        description="whether a resident worker's run updates the table's asset `…/lake` in Airflow, which takes a task"
        " process; a run in a task process always does",
    )
    lease: Duration = Field(
        default=timedelta(seconds=60),
        le=timedelta(days=1),
        description="for how long a killed worker blocks its table at most; at most 1d",
    )
    claim_rows: int = Field(
        default=2_000_000,
        ge=1,
        description="most rows of one claim; the slices of one boundary are never divided, so a larger boundary is one"
        " claim",
    )
    claim_slices: int = Field(
        default=1_000,
        ge=1,
        description="most slices of one claim, with the same exception: a larger boundary is one claim",
    )
    upsert: Literal["append", "merge"] = Field(
        default="append",
        description="how a claim reaches its table: by an own commit with deletion vectors, or by Spark's MERGE",
    )
    rows_without_spark: int = Field(
        default=500_000,
        ge=0,
        description="most rows of a claim for which the worker itself looks up the lake's rows, not a Spark job",
    )
    unpacked_bytes: int = Field(default=16 << 30, ge=1, description="largest uncompressed size of a slice file")
    longest_pause: Duration = Field(
        default=timedelta(minutes=5), description="longest time between two tries of a failing table"
    )
    retry_for: Duration = Field(default=timedelta(hours=1), description="a table that fails for this long is parked")
    probe_parked: Duration = Field(
        default=timedelta(minutes=15), description="time between two tries of a parked table"
    )

    @property
    def retry_policy(self) -> RetryPolicy:
        return RetryPolicy(longest_pause=self.longest_pause, retry_for=self.retry_for, probe_parked=self.probe_parked)


class MaintenanceSettings(Frozen):
    """When the lake's files are rewritten: by need, and never more at once than fits between two slices.

    A slice run looks at its table after every `small_files` versions, the DAG cdc_maintenance daily.
    """

    small_files: int = Field(
        default=5,
        ge=2,
        description="number of small files in one data partition at which they are merged: reading opens each one, and"
        " a claim opens those with ids near its own. A slice run looks for them each time its table has gained this"
        " many versions",
    )
    small_file_bytes: int = Field(
        default=16 << 20,
        ge=1,
        description="a smaller file is small. Opening a file of 16 MiB costs little beside reading it",
    )
    deleted_share: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="a larger file is rewritten when this share of its rows is deleted. So at most four rows are copied"
        " for each that was deleted",
    )
    run_bytes: int = Field(
        default=128 << 20,
        ge=1,
        description="most bytes of files that one run rewrites, but at least one file, or two small ones; the rest"
        " waits for the next run. 128 MiB take about ten processor seconds",
    )


class KeepSettings(Frozen):
    """How long data that the lake no longer needs is kept. `cdc clean` and the DAG cdc_maintenance delete the rest."""

    slices: Duration = Field(
        default=timedelta(days=7),
        description="slice files and cut files, since the lake has their content; at least 1d",
    )
    snapshots: Duration = Field(
        default=timedelta(days=7), description="files of a snapshot, since it ended; at least 1d"
    )
    history: Duration = Field(
        default=timedelta(days=30),
        description="claims and snapshots in the metadata store, since they ended, not the history tables; at least 1d",
    )
    quarantine: Duration = Field(
        default=timedelta(days=30), description="events in quarantine, since they were replayed or dropped; at least 1d"
    )

    @field_validator("*")
    @classmethod
    def _between_a_day_and_a_century(cls, value: timedelta) -> timedelta:
        if value < _SHORTEST_KEPT:
            message = f"{value} is too short: a comparison or a rewind may still need the data; write at least 1d"
            raise ValueError(message)
        if value > _LONGEST_KEPT:
            message = f"{value} is longer than calendars go back; write at most {_LONGEST_KEPT.days}d"
            raise ValueError(message)
        return value
