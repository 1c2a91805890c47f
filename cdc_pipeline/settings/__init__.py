"""The settings of a pipeline: the validated, immutable content of one pipeline.yml."""

from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from cdc_pipeline.errors import UsageError
from cdc_pipeline.record import OWN_PREFIX, TableName
from cdc_pipeline.settings.aws import DynamodbSource, KinesisSource
from cdc_pipeline.settings.change_files import ChangeFilesSource
from cdc_pipeline.settings.debezium_files import DebeziumFilesSource
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.settings.lake_location import check_lake, is_on_s3, parse_endpoint
from cdc_pipeline.settings.mysql import MysqlSource
from cdc_pipeline.settings.postgres import PostgresSource
from cdc_pipeline.settings.table_patterns import checked_pattern
from cdc_pipeline.settings.work import (
    EMBEDDED,
    DriverSettings,
    Duration,
    Frozen,
    KeepSettings,
    MaintenanceSettings,
    SnapshotSettings,
    WorkerSettings,
    spark_url,
)

_MINIMUM_SLICE = timedelta(seconds=1)


def parse_type(written: str) -> str:
    """Returns the canonical name of a type that is written as in PostgreSQL. Raises ValueError for an unknown type."""
    from cdc_pipeline.types import declared_type

    try:
        return declared_type(written)
    except UsageError as error:
        raise ValueError(str(error)) from error


class PartitionBy(Frozen):
    """A column by which the lake's files are partitioned. It must be immutable and have few distinct values.

    The lake has the text that names a row's folder in `_cdc_<column>_<unit>`. A value of more than 60 bytes, or with
    NUL, is cut there to 40 characters without NUL, `~` and 16 digits of its SHA-256; the column keeps all of it. Rows
    of an earlier version keep the whole value there until they are written again; a new snapshot writes all of them.
    """

    column: str = Field(description="the column; its value never changes in a row")
    unit: Literal["value", "year", "month", "day", "hour"] = Field(
        default="value", description="one folder for each value, or for each year, month, day or hour of a time"
    )

    @property
    def lake_column(self) -> str:
        return f"_cdc_{self.column}_{self.unit}"


class TableSettings(Frozen):
    """One source table. What is not set is taken from the source's catalogue."""

    name: str = Field(description="db.schema.table; a part with a dot is in double quotes")
    id: tuple[str, ...] = Field(
        default=(), description="columns that identify a row; default: the primary key. Fixed after the first snapshot"
    )
    create_time: str | None = Field(
        default=None, description="column with the time of the insert; readers skip files by its minimum and maximum"
    )
    update_time: str | None = Field(
        default=None, description="column with the time of the last change; as `create_time`; snapshots sort by it"
    )
    partition_by: tuple[PartitionBy, ...] = Field(
        default=(), description="columns that divide the lake's table into folders. Fixed after the first snapshot"
    )
    deletes: Literal["hard", "soft"] = Field(
        default="hard",
        description="hard removes deleted rows, soft (with an id) sets `_cdc_deleted`, also in rows that a new snapshot"
        " lacks. Fixed after the first snapshot",
    )
    truncate: Literal["apply", "ignore"] = Field(
        default="apply",
        description="a TRUNCATE of the source empties the lake's table, or does nothing there until the next snapshot",
    )
    on_schema_change: Literal["follow", "stop"] = Field(
        default="follow",
        description="follow changes of the table's columns, with a new snapshot if needed, or stop the table",
    )
    dropped_columns: Literal["keep", "drop"] = Field(
        default="keep",
        description="keep (in the lake until the next snapshot) or drop the values of a column that the source dropped",
    )
    as_text: tuple[str, ...] = Field(
        default=(),
        description="columns that the lake stores as the source's text; a change needs a new snapshot of the table",
    )
    exclude_columns: tuple[str, ...] = Field(
        default=(),
        description="columns that the pipeline drops before it writes anything; a change needs a new snapshot",
    )
    deletion_vectors: bool = Field(
        default=True, description="off: Delta rewrites files instead, for readers that do not support deletion vectors"
    )
    history: bool = Field(
        default=False, description="keep each version of a row in a second lake table, `<table>.history` (SCD type 2)"
    )
    columns: Mapping[str, Annotated[str, AfterValidator(parse_type)]] = Field(
        default={}, description="PostgreSQL's type of each column, for events that do not contain types"
    )

    @cached_property
    def table(self) -> TableName:
        return TableName.parse(self.name)

    @property
    def read_as_text(self) -> tuple[str, ...]:
        """Columns that a database source reads as texts, so that no value of an excluded column is refused."""
        return (*self.as_text, *self.exclude_columns)

    @field_validator("exclude_columns")
    @classmethod
    def _in_order(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(set(names)))

    @model_validator(mode="after")
    def _columns_fit_together(self) -> "TableSettings":
        used = {*self.id, self.create_time, self.update_time, *self.as_text, *self.columns}
        used |= {partition.column for partition in self.partition_by}
        both = next((name for name in self.exclude_columns if name in used), None)
        if both is not None:
            message = f"exclude_columns names {both!r}, which another setting of the table uses"
            raise ValueError(message)
        array = next((name for name in self.id if self.columns.get(name, "").endswith("[]")), None)
        if array is not None:
            message = f"id names {array!r}, an array: slices and the lake are sorted by id, and arrays cannot be"
            raise ValueError(message)
        for setting, named in (("id", self.id), ("partition_by", self.partition_by)):
            if len(set(named)) < len(named):
                message = f"{setting} names a column twice: keep one of them"
                raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _history_has_vectors(self) -> "TableSettings":
        if self.history and not self.deletion_vectors:
            message = "a history needs deletion vectors: without them each claim would rewrite whole files of it"
            raise ValueError(message)
        return self

    @field_validator("name")
    @classmethod
    def _three_parts(cls, name: str) -> str:
        return str(TableName.parse(name))

    @field_validator("columns")
    @classmethod
    def _not_our_own(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        for name in columns:
            if name.startswith(OWN_PREFIX):
                message = f"the column {name!r} begins with {OWN_PREFIX}: such names are reserved for the pipeline"
                raise ValueError(message)
        return columns


class ObjectStoreSettings(Frozen):
    """The server of a lake on S3. Credentials come from AWS's own variables or profile."""

    endpoint: str | None = Field(default=None, description="https://host:port; default: AWS_ENDPOINT_URL's, else AWS")
    region: str | None = Field(default=None, min_length=1, description="default: the one of the environment or profile")
    path_style: bool = Field(default=False, description="put the bucket's name into the path instead of the host name")
    allow_http: bool = Field(default=False, description="allow an endpoint on another machine without TLS")

    @model_validator(mode="after")
    def _encrypted(self) -> "ObjectStoreSettings":
        if self.endpoint is not None:
            parse_endpoint(self.endpoint, allow_http=self.allow_http)
        return self


class Settings(Frozen):
    """The whole pipeline. Relative paths start at the folder of pipeline.yml."""

    folder: Path = Field(exclude=True)
    name: str = Field(
        pattern=r"^[a-z][a-z0-9_]*$",
        max_length=40,
        description="name of the pipeline, its stream and its group in Kafka: a small letter, then small letters,"
        " digits and `_`; at most 40 characters. It cannot change later",
    )
    lake: str = Field(min_length=1, description="a folder, file:///folder, or s3://bucket/prefix")
    object_store: ObjectStoreSettings = Field(default=ObjectStoreSettings(), description="the server of a lake on S3")
    metadata_store: str = Field(default=EMBEDDED, description="postgresql://user@host/database; embedded: started here")
    spark: Annotated[str, AfterValidator(spark_url)] = Field(
        default=EMBEDDED, description="sc://host:port of a Spark Connect server; embedded: started here"
    )
    slice_length: Duration = Field(
        default=timedelta(seconds=60),
        description="interval of commit time of a slice, whole seconds, at least 1s. A shorter one makes the lake"
        " fresher and costs more claims",
    )
    source: Annotated[
        PostgresSource
        | DebeziumFilesSource
        | KafkaSource
        | KinesisSource
        | DynamodbSource
        | MysqlSource
        | ChangeFilesSource,
        Field(discriminator="kind", description="what is read; `kind` selects one of these sections"),
    ]
    tables: tuple[TableSettings, ...] = Field(min_length=1, description="the tables to read, all of one database")
    include: tuple[Annotated[str, AfterValidator(checked_pattern)], ...] = Field(
        default=(), description="more tables by pattern: db.schema.table, with * and ? in schema and table"
    )
    exclude: tuple[Annotated[str, AfterValidator(checked_pattern)], ...] = Field(
        default=(), description="patterns of tables that `include` leaves out"
    )
    snapshot: SnapshotSettings = Field(default=SnapshotSettings(), description="how the initial lake is built")
    worker: WorkerSettings = Field(default=WorkerSettings(), description="how slices are applied")
    driver: DriverSettings = Field(default=DriverSettings(), description="the embedded Spark driver")
    maintenance: MaintenanceSettings = Field(default=MaintenanceSettings(), description="when files are rewritten")
    keep: KeepSettings = Field(
        default=KeepSettings(), description="how long data that the lake no longer needs is kept"
    )

    @field_validator("slice_length")
    @classmethod
    def _whole_seconds(cls, value: timedelta) -> timedelta:
        if value < _MINIMUM_SLICE or value.microseconds:
            message = f"{value} is not a slice length: write whole seconds, at least 1s"
            raise ValueError(message)
        return value

    @field_validator("lake")
    @classmethod
    def _is_location(cls, value: str, info: ValidationInfo) -> str:
        check_lake(value, info.data["folder"])
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
            message = (
                f"the tables are in {len(databases)} databases ({', '.join(databases)}): a pipeline reads only one"
            )
            raise ValueError(message)
        return tables

    @model_validator(mode="after")
    def _types_from_one_place(self) -> "Settings":
        for setting, why in self.source.unfit_table_settings.items():
            listed = next((table.name for table in self.tables if getattr(table, setting)), None)
            if listed is not None:
                message = f"the table {listed} has {setting}: {why}"
                raise ValueError(message)
        return self

    def table(self, name: TableName) -> TableSettings:
        return next(table for table in self.tables if table.table == name)

    @property
    def embeds_source(self) -> bool:
        """Whether the source is a database on the embedded server."""
        return self.source.url == EMBEDDED

    @property
    def on_s3(self) -> bool:
        return is_on_s3(self.lake)

    @property
    def lake_url(self) -> str:
        """Absolute: `file:///…` or `s3://…`, without a slash at the end."""
        if "://" in self.lake:
            return self.lake.rstrip("/")
        return (self.folder / self.lake).resolve().as_uri()
