"""The settings of a pipeline: the validated, immutable content of one pipeline.yml."""

from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from cdc_pipeline.errors import UsageError
from cdc_pipeline.record import OWN_PREFIX, TableName
from cdc_pipeline.settings.change_files import ChangeFilesSource
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.settings.lake_location import is_on_s3, parse_endpoint, parse_s3
from cdc_pipeline.settings.table_patterns import checked_pattern
from cdc_pipeline.settings.work import (
    DriverSettings,
    Duration,
    Frozen,
    KeepSettings,
    SnapshotSettings,
    WorkerSettings,
)
from cdc_pipeline.types import declared_type

_MINIMUM_SLICE = timedelta(seconds=1)
EMBEDDED = "embedded"


def parse_type(written: str) -> str:
    """Returns the canonical name of a type that is written as in PostgreSQL. Raises ValueError for an unknown type."""
    try:
        return declared_type(written)
    except UsageError as error:
        raise ValueError(str(error)) from error


class PostgresSource(Frozen):
    """A PostgreSQL 14 to 18 server with `wal_level = logical`."""

    unfit_table_settings: ClassVar[Mapping[str, str]] = {
        "columns": "PostgreSQL's catalogue has their types, so leave them out"
    }
    kind: Literal["postgres"]
    url: str = EMBEDDED
    publication: str = Field(default="cdc", pattern=r"^[a-z_][a-z0-9_]*$", max_length=63)
    slot: str = Field(default="cdc", pattern=r"^[a-z0-9_]+$", max_length=63)
    stream_partitions: int = Field(default=1, ge=1, le=64)
    slice_rows: int = Field(default=200_000, ge=1, description="a slice is also cut when it holds this many rows")
    log_alarm_bytes: int = Field(
        default=64 << 30,
        ge=1 << 20,
        description="raise an alarm when the slot keeps back more of the source's log than this",
    )

    def folders(self, base: Path) -> tuple[Path, ...]:
        """A server is read by its URL."""
        del base
        return ()


class DebeziumFilesSource(Frozen):
    """A folder of files with one Debezium event per line: `<path>/<stream partition>/*.jsonl`, read in name order."""

    kind: Literal["debezium_files"]
    path: str = Field(min_length=1)
    ordered: bool = Field(
        default=True, description="whether each stream partition has the events of an id in their order"
    )
    sequence_by: tuple[str, ...] = Field(
        default=(), description="fields of an event that show which of two events is newer"
    )
    late_by: Duration | None = Field(default=None, description="events that are later than this are not accepted")
    slice_rows: int = Field(default=200_000, ge=1, description="a slice is also cut when it holds this many rows")

    unfit_table_settings: ClassVar[Mapping[str, str]] = {
        "as_text": "events in files do not contain the source's text, so leave it out"
    }

    @property
    def url(self) -> str:
        """Files have no server."""
        return ""

    def folders(self, base: Path) -> tuple[Path, ...]:
        """Folders that are read. Relative paths start at `base`."""
        return (base / self.path,)

    @model_validator(mode="after")
    def _one_order(self) -> "DebeziumFilesSource":
        if self.ordered and self.sequence_by:
            message = "sequence_by is for ordered: false; the order of ordered files is that of their lines"
            raise ValueError(message)
        if not self.ordered and not self.sequence_by:
            message = "ordered: false needs sequence_by, such as [source.lsn]: it shows which event is newer"
            raise ValueError(message)
        if self.ordered and self.late_by is not None:
            message = "late_by is for ordered: false; in ordered files the position shows what can still come"
            raise ValueError(message)
        return self


class MysqlSource(Frozen):
    """A MariaDB server 10.5 or newer with `log_bin` and `binlog_row_metadata = FULL`, read by its binary log."""

    unfit_table_settings: ClassVar[Mapping[str, str]] = {
        "columns": "the server's catalogue has their types, so leave them out"
    }
    kind: Literal["mysql"]
    url: str = Field(
        min_length=1,
        repr=False,
        description="mysql://user@host:port; the password also in a file or in CDC_SOURCE__URL",
    )
    password_file: str | None = Field(default=None, description="a file with the password of the user")
    tls: Literal["off", "require", "verify"] | None = Field(
        default=None, description="verify: check the server's certificate. Default: require, for another machine"
    )
    tls_ca: str | None = Field(default=None, description="a file with the certificates that `verify` trusts")
    marker_table: str = Field(
        default="cdc_pipeline.cdc_marker",
        pattern=r"^[A-Za-z0-9_]+\.[A-Za-z0-9_]+$",
        description="database.table on the source, through which marker messages are sent; set-up creates it",
    )
    server_id: int | None = Field(
        default=None, ge=1, lt=1 << 32, description="by which the source knows the consumer; default: from the name"
    )
    copy_address: str = Field(
        default="127.0.0.1",
        description="the address at which the process that holds a snapshot lets worker slots read it",
    )
    stream_partitions: int = Field(default=1, ge=1, le=64)
    slice_rows: int = Field(default=200_000, ge=1, description="a slice is also cut when it holds this many rows")

    def folders(self, base: Path) -> tuple[Path, ...]:
        """A server is read by its URL."""
        del base
        return ()


class PartitionBy(Frozen):
    """A column by which the lake's files are partitioned. It must be immutable and have few distinct values."""

    column: str
    unit: Literal["value", "year", "month", "day", "hour"] = "value"

    @property
    def lake_column(self) -> str:
        return f"_cdc_{self.column}_{self.unit}"


class TableSettings(Frozen):
    """One source table. What is not set is taken from the source's catalogue."""

    name: str
    id: tuple[str, ...] = ()
    create_time: str | None = None
    update_time: str | None = None
    partition_by: tuple[PartitionBy, ...] = ()
    deletes: Literal["hard", "soft"] = "hard"
    truncate: Literal["apply", "ignore"] = "apply"
    on_schema_change: Literal["follow", "stop"] = Field(
        default="follow",
        description="follow changes of the table's columns, with a new snapshot if needed, or stop the table",
    )
    dropped_columns: Literal["keep", "drop"] = Field(
        default="keep", description="keep or drop the lake's values of a column that the source dropped"
    )
    as_text: tuple[str, ...] = Field(
        default=(), description="columns that the lake stores as the source's text, whatever their type"
    )
    deletion_vectors: bool = Field(
        default=True, description="off: Delta rewrites files instead, for readers that do not support deletion vectors"
    )
    columns: Mapping[str, Annotated[str, AfterValidator(parse_type)]] = Field(
        default={}, description="PostgreSQL's type of each column, for events that do not contain types"
    )

    @cached_property
    def table(self) -> TableName:
        return TableName.parse(self.name)

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

    endpoint: str | None = Field(default=None, description="https://host:port; default: AWS")
    region: str | None = Field(default=None, min_length=1)
    path_style: bool = Field(default=False, description="put the bucket's name into the path instead of the host name")
    allow_http: bool = Field(default=False, description="allow an endpoint on another machine without TLS")

    @model_validator(mode="after")
    def _encrypted(self) -> "ObjectStoreSettings":
        if self.endpoint is not None:
            parse_endpoint(self.endpoint, allow_http=self.allow_http)
        return self


class Settings(BaseSettings):
    """The whole pipeline. Relative paths start at `folder`, the folder of pipeline.yml."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix="CDC_", env_nested_delimiter="__")

    folder: Path = Field(exclude=True)
    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)
    lake: str = Field(min_length=1, description="a folder, file:///folder, or s3://bucket/prefix")
    object_store: ObjectStoreSettings = ObjectStoreSettings()
    metadata_store: str = EMBEDDED
    spark: str = EMBEDDED
    slice_length: Duration = timedelta(seconds=60)
    source: Annotated[
        PostgresSource | DebeziumFilesSource | KafkaSource | MysqlSource | ChangeFilesSource,
        Field(discriminator="kind"),
    ]
    tables: tuple[TableSettings, ...] = Field(min_length=1)
    include: tuple[Annotated[str, AfterValidator(checked_pattern)], ...] = ()
    exclude: tuple[Annotated[str, AfterValidator(checked_pattern)], ...] = ()
    snapshot: SnapshotSettings = SnapshotSettings()
    worker: WorkerSettings = WorkerSettings()
    driver: DriverSettings = DriverSettings()
    keep: KeepSettings = KeepSettings()

    @field_validator("slice_length")
    @classmethod
    def _whole_seconds(cls, value: timedelta) -> timedelta:
        if value < _MINIMUM_SLICE or value.microseconds:
            message = f"{value} is not a slice length: write whole seconds, at least 1s"
            raise ValueError(message)
        return value

    @field_validator("lake")
    @classmethod
    def _without_credential(cls, value: str) -> str:
        if is_on_s3(value):
            parse_s3(value)
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

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only the given values are used. `settings.file` has merged the environment into them."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

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
