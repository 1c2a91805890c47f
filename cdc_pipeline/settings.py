"""What a pipeline is made of: the frozen, validated content of one pipeline.yml."""

import re
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from cdc_pipeline.record import TableName

_DURATION = re.compile(r"(\d{1,6})\s*(s|m|h|d)", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_MINIMUM_SLICE = timedelta(seconds=1)
EMBEDDED = "embedded"


def parse_duration(value: object) -> timedelta:
    """`90s`, `5m`, `2h`, `7d`; raises ValueError for anything else."""
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(str(value).strip())
    if match is None or int(match[1]) == 0:
        message = f"{value!r} is not a duration: write a whole number and s, m, h or d, such as 60s or 5m"
        raise ValueError(message)
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": "string", "pattern": f"^{_DURATION.pattern}$"}),
]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PostgresSource(_Frozen):
    """A PostgreSQL 14 to 18 server with `wal_level = logical`."""

    kind: Literal["postgres"]
    url: str = EMBEDDED
    publication: str = Field(default="cdc", pattern=r"^[a-z_][a-z0-9_]*$", max_length=63)
    slot: str = Field(default="cdc", pattern=r"^[a-z0-9_]+$", max_length=63)
    stream_partitions: int = Field(default=1, ge=1, le=64)
    slice_rows: int = Field(default=200_000, ge=1, description="a slice is also cut when it holds this many rows")


class PartitionBy(_Frozen):
    """A data partition key, from an immutable column of low cardinality."""

    column: str
    unit: Literal["value", "year", "month", "day", "hour"] = "value"

    @property
    def lake_column(self) -> str:
        return f"_cdc_{self.column}_{self.unit}"


class TableSettings(_Frozen):
    """One source table; what is left out is taken from the source's catalogue."""

    name: str
    id: tuple[str, ...] = ()
    create_time: str | None = None
    update_time: str | None = None
    partition_by: tuple[PartitionBy, ...] = ()
    deletes: Literal["hard", "soft"] = "hard"

    @cached_property
    def table(self) -> TableName:
        return TableName.parse(self.name)

    @model_validator(mode="after")
    def _three_parts(self) -> "TableSettings":
        _ = self.table
        return self


class SnapshotSettings(_Frozen):
    """How the initial lake is built."""

    concurrency: int = Field(default=2, ge=1, le=64)
    snapshot_file_bytes: int = Field(default=64 << 20, ge=1 << 13, description="source bytes of one snapshot data file")
    target_file_bytes: int = Field(default=128 << 20, ge=1 << 10)
    poll_interval: Duration = timedelta(seconds=10)


class DriverSettings(_Frozen):
    """The embedded Spark driver."""

    memory: str = Field(default="2g", pattern=r"^[1-9][0-9]*[mg]$")
    java_options: str = Field(default="", description="options of its Java machine")


class WorkerSettings(_Frozen):
    """How slices are applied."""

    lease: Duration = timedelta(seconds=60)
    claim_rows: int = Field(default=2_000_000, ge=1, description="the most rows that one MERGE takes")
    claim_slices: int = Field(default=1_000, ge=1, description="the most slices that one MERGE takes")


class Settings(BaseSettings):
    """The whole pipeline. `folder` is where relative paths start: the folder of pipeline.yml."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix="CDC_", env_nested_delimiter="__")

    folder: Path = Field(exclude=True)
    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)
    lake: str
    metadata_store: str = EMBEDDED
    spark: str = EMBEDDED
    slice_length: Duration = timedelta(seconds=60)
    source: PostgresSource
    tables: tuple[TableSettings, ...] = Field(min_length=1)
    snapshot: SnapshotSettings = SnapshotSettings()
    worker: WorkerSettings = WorkerSettings()
    driver: DriverSettings = DriverSettings()

    @field_validator("slice_length")
    @classmethod
    def _whole_seconds(cls, value: timedelta) -> timedelta:
        if value < _MINIMUM_SLICE or value.microseconds:
            message = f"{value} is too short for a slice: the shortest is 1s"
            raise ValueError(message)
        return value

    @field_validator("tables")
    @classmethod
    def _one_database(cls, tables: tuple[TableSettings, ...]) -> tuple[TableSettings, ...]:
        names = [table.name for table in tables]
        for name in names:
            if names.count(name) > 1:
                message = f"the table {name} is listed {names.count(name)} times: keep one entry"
                raise ValueError(message)
        databases = sorted({table.table.database for table in tables})
        if len(databases) > 1:
            message = f"the tables lie in {len(databases)} databases ({', '.join(databases)}): one pipeline reads one"
            raise ValueError(message)
        return tables

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Nothing is read behind the caller's back: `settings_file` lays the environment over the file."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

    def table(self, name: TableName) -> TableSettings:
        return next(table for table in self.tables if table.table == name)

    @property
    def lake_url(self) -> str:
        """Absolute: `file:///…` or `s3://…`, without a slash at the end."""
        if "://" in self.lake:
            return self.lake.rstrip("/")
        return (self.folder / self.lake).resolve().as_uri()
