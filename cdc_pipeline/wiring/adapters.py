"""Chooses and builds the concrete source, object store and lake from the settings."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.settings import ObjectStoreSettings, Settings
from cdc_pipeline.settings.aws import DynamodbSource, KinesisSource
from cdc_pipeline.settings.change_files import ChangeFilesSource, CsvSettings
from cdc_pipeline.settings.debezium_files import DebeziumFilesSource
from cdc_pipeline.settings.installation.endpoints import Endpoints
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.settings.lake_location import check_location, is_on_s3, parse_endpoint, parse_s3
from cdc_pipeline.settings.mysql import MysqlSource
from cdc_pipeline.settings.postgres import PostgresSource
from cdc_pipeline.steps import OnStep, no_step, step
from cdc_pipeline.time_slice import utc_now

if TYPE_CHECKING:
    from cdc_pipeline.lake.spark_lake import SparkLake
    from cdc_pipeline.sources.files.exported_files import ExportedFiles
    from cdc_pipeline.sources.protocol import Source


def source_of(settings: Settings, endpoints: Endpoints, on_step: OnStep = no_step) -> "Source":
    """Builds the source that the settings name. Connects to nothing. No other code asks for the kind of source."""
    source = settings.source
    if isinstance(source, PostgresSource):
        from cdc_pipeline.sources.postgres.source import PostgresDatabase

        return PostgresDatabase(
            stream=settings.name,
            url=endpoints.source_url,
            settings=source,
            tables=settings.tables,
            on_step=on_step,
        )
    if isinstance(source, KafkaSource):
        from cdc_pipeline.sources.kafka.source import KafkaTopics

        return KafkaTopics(
            stream=settings.name, kind=source.kind, folder=settings.folder, settings=source, tables=settings.tables
        )
    if isinstance(source, KinesisSource | DynamodbSource):
        return _shards(source, settings)
    if isinstance(source, MysqlSource):
        from cdc_pipeline.sources.mysql.source import MysqlServer

        return MysqlServer(
            stream=settings.name, settings=source, folder=settings.folder, tables=settings.tables, on_step=on_step
        )
    if isinstance(source, ChangeFilesSource):
        return _change_files(source, settings, on_step)
    return _debezium_files(source, settings, on_step)


def _change_files(source: ChangeFilesSource, settings: Settings, on_step: OnStep) -> "Source":
    from cdc_pipeline.sources.files.change_folders import ChangeFolders, change_order
    from cdc_pipeline.sources.files.complete_files import table_folders
    from cdc_pipeline.sources.files.source import FileSource

    return FileSource(
        stream=settings.name,
        kind=source.kind,
        order=change_order(source),
        tables=settings.tables,
        transport=ChangeFolders(
            objects=open_object_store_at(source.location(settings.folder), settings.object_store),
            settings=source,
            folders=table_folders(source, settings.tables),
            on_step=on_step,
        ),
    )


def _debezium_files(source: DebeziumFilesSource, settings: Settings, on_step: OnStep) -> "Source":
    from cdc_pipeline.sources.files.debezium_folders import DebeziumFolders, debezium_order
    from cdc_pipeline.sources.files.source import FileSource

    return FileSource(
        stream=settings.name,
        kind=source.kind,
        order=debezium_order(source),
        tables=settings.tables,
        transport=DebeziumFolders(folder=(settings.folder / source.path).resolve(), on_step=on_step),
    )


def _shards(source: KinesisSource | DynamodbSource, settings: Settings) -> "Source":
    if isinstance(source, KinesisSource):
        from cdc_pipeline.sources.kinesis.client import KinesisClient
        from cdc_pipeline.sources.kinesis.source import kinesis_source

        return kinesis_source(
            source, stream=settings.name, tables=settings.tables, connect=lambda: KinesisClient(source, settings.folder)
        )
    from cdc_pipeline.sources.dynamodb.client import DynamodbClient
    from cdc_pipeline.sources.dynamodb.source import dynamodb_source

    return dynamodb_source(
        source, stream=settings.name, tables=settings.tables, connect=lambda: DynamodbClient(source, settings.folder)
    )


def open_exported_files(
    settings: Settings, url: str, *, only: str, header: bool | None, on_step: OnStep
) -> "ExportedFiles":
    """Opens exported files at `file:///…` or `s3://…`. CSV files are read as those of the source are.

    Where nothing lies below a key of a bucket, it is that of one file. `header`: whether they begin with the names of
    the columns; None for what the settings of the source say.
    """
    from cdc_pipeline.sources.files.exported_files import ExportedFiles

    source = settings.source
    csv = source.csv if isinstance(source, ChangeFilesSource) else CsvSettings()
    csv = csv if header is None else csv.model_copy(update={"header": header})
    full_load = source if isinstance(source, ChangeFilesSource) and source.format == "dms" else None
    time_column = None if full_load is None else full_load.time_column
    # Beside the schemas of Debezium's events, `columns` may list only some of the columns.
    is_whole = isinstance(source, ChangeFilesSource) and source.format != "debezium"
    objects = open_object_store_at(url, settings.object_store)
    if not only and is_on_s3(url) and parse_s3(url).prefix:
        with step(on_step, "source_file.read"):
            is_file = next(iter(objects.list_prefix("")), None) is None
        if is_file:
            folder, _, only = url.rpartition("/")
            objects = open_object_store_at(folder, settings.object_store)
    return ExportedFiles(
        objects=objects,
        csv=csv,
        leading=() if time_column is None else (time_column,),
        declared={table.table: tuple(table.columns) for table in settings.tables if is_whole and table.columns},
        only=only,
        of_postgres=isinstance(source, PostgresSource),
        of_mysql=isinstance(source, MysqlSource),
        of_dms=full_load is not None,
        on_step=on_step,
    )


def open_object_store(settings: Settings, below: str = "") -> ObjectStore:
    """Opens the lake's object store, or the part of it whose keys begin with `below`."""
    return open_object_store_at(f"{settings.lake_url}/{below}".rstrip("/"), settings.object_store)


def open_object_store_at(url: str, server: ObjectStoreSettings) -> ObjectStore:
    """Opens the object store at `file:///…` or `s3://…`. Raises SettingsError for any other scheme, before any call.

    A store on S3 is proven before its first put: it must refuse to overwrite an object.
    """
    try:
        check_location(url)
    except ValueError as error:
        raise SettingsError(str(error), remedy="correct the URL") from error
    if not is_on_s3(url):
        return LocalObjectStore(Path(unquote(urlsplit(url).path)))
    return _open_s3(url, server)


def _open_s3(url: str, server: ObjectStoreSettings) -> ObjectStore:
    from cdc_pipeline.object_store.s3 import S3ObjectStore
    from cdc_pipeline.object_store.s3_location import S3Location

    location = parse_s3(url)
    return S3ObjectStore(
        S3Location(
            bucket=location.bucket,
            prefix=location.prefix,
            endpoint=server.endpoint and parse_endpoint(server.endpoint, allow_http=server.allow_http),
            region=server.region,
            path_style=server.path_style,
            allow_http=server.allow_http,
        ),
    )


def open_lake(
    spark_url: str,
    objects: ObjectStore,
    on_step: OnStep,
    *,
    upsert: Literal["append", "merge"] = "append",
    rows_without_spark: int = 0,
) -> "SparkLake":
    """Builds the lake on Spark; its session is opened at the first use.

    Spark writes to the bucket without `objects`, so a store on S3 is proven before the session is opened.
    """
    from cdc_pipeline.lake.session import cancel, connect
    from cdc_pipeline.lake.spark_lake import SparkLake

    return SparkLake(
        open_session=lambda: connect(spark_url, first=objects.prove),
        store=objects,
        clock=utc_now,
        on_step=on_step,
        cancel_session=lambda session, tag: cancel(spark_url, session, tag),
        upsert=upsert,
        rows_without_spark=rows_without_spark,
    )
