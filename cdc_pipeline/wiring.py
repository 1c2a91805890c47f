"""The one place where concrete things are built from settings: stores, lake, workers."""

import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from uuid import UUID

from cdc_pipeline.apply.claim_work import ClaimLimits
from cdc_pipeline.apply.slice_to_lake import SliceWorker
from cdc_pipeline.areas import lake_key
from cdc_pipeline.consume.cut_chain import CutChain
from cdc_pipeline.errors import SettingsError
from cdc_pipeline.installation.endpoints import Endpoints, endpoints
from cdc_pipeline.installation.state import home_of
from cdc_pipeline.lake.protocol import Lake, LakeTable
from cdc_pipeline.metadata_store.store import MetadataStore, open_metadata_store
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.object_store.proven import ProvenObjectStore
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import ObjectStoreSettings, PostgresSource, Settings
from cdc_pipeline.settings.file import load_settings, settings_path
from cdc_pipeline.settings.lake_location import parse_endpoint, parse_s3
from cdc_pipeline.settings.retry_policy import RetryPolicy
from cdc_pipeline.sources.files.source import DebeziumFolder
from cdc_pipeline.sources.postgres.source import PostgresDatabase
from cdc_pipeline.sources.protocol import Source
from cdc_pipeline.steps import OnStep, no_step

if TYPE_CHECKING:
    from cdc_pipeline.lake.spark_lake import SparkLake

_TERMINATED = 128 + signal.SIGTERM

LakeFactory = Callable[[ObjectStore, OnStep], Lake]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Everything that a verb works with. One per process; safe to share between threads, except for `lake`."""

    settings: Settings
    endpoints: Endpoints
    source: Source
    objects: ObjectStore
    store: MetadataStore
    open_lake: Callable[[], Lake]
    owner: str
    clock: Callable[[], datetime]
    new_id: Callable[[], UUID]
    on_step: OnStep

    @property
    def lake(self) -> Lake:
        return self.open_lake()

    def lake_table(self, name: TableName) -> LakeTable:
        """As the registry and pipeline.yml describe it now. Raises UsageError for a table that is not registered."""
        row = self.store.tables.table(name)
        if row.schema_id is None:
            raise SettingsError(f"{name} has no schema yet", remedy="run cdc setup-source")
        settings = self.settings.table(name)
        return LakeTable(
            name=name,
            table_uuid=str(row.table_uuid),
            schema=self.store.tables.schema(row.table_id, row.schema_id),
            ordered=self.source.capabilities.orders_ids(len(self.store.streams.stream_partitions(self.settings.name))),
            partition_by=settings.partition_by,
            deletes=settings.deletes,
            create_time=settings.create_time,
            update_time=settings.update_time,
            keeps_dropped=settings.dropped_columns == "keep",
            deletion_vectors=settings.deletion_vectors,
        )

    def lake_url(self, name: TableName) -> str:
        """Where Spark finds the lake's table."""
        return self.objects.spark_url(lake_key(name))

    def table_names(self, chosen: tuple[str, ...] = ()) -> tuple[TableName, ...]:
        """The chosen tables, or all of pipeline.yml. Raises SettingsError for one that it does not list."""
        known = {table.name: table.table for table in self.settings.tables}
        for name in chosen:
            if name not in known:
                raise SettingsError(
                    f"pipeline.yml lists no table {name!r}",
                    expected=f"one of {', '.join(known)}",
                    remedy="add it there, or mend the name",
                )
        return tuple(known[name] for name in chosen or known)

    def cut_chain(self) -> CutChain:
        return CutChain(name=self.settings.name, objects=self.objects, store=self.store, on_step=self.on_step)

    def slice_worker(self) -> SliceWorker:
        worker = self.settings.worker
        return SliceWorker(
            owner=self.owner,
            lease_length=worker.lease,
            limits=ClaimLimits(
                slices=worker.claim_slices, rows=worker.claim_rows, unpacked_bytes=worker.unpacked_bytes
            ),
            retry_policy=RetryPolicy(
                longest_pause=worker.longest_pause, retry_for=worker.retry_for, probe_parked=worker.probe_parked
            ),
            store=self.store,
            objects=self.objects,
            lake=self.lake,
            lake_table=self.lake_table,
            new_id=self.new_id,
            on_step=self.on_step,
        )


@contextmanager
def open_pipeline(
    settings: Settings, endpoints: Endpoints, *, on_step: OnStep = no_step, make_lake: LakeFactory | None = None
) -> Iterator[Pipeline]:
    """Connects to the metadata store at once and to Spark at its first use. Both are left when the block ends.

    `make_lake` gives another lake than the one on Spark.
    """
    objects = open_object_store(settings)
    with open_metadata_store(endpoints.metadata_store_url, stream=settings.name, on_step=on_step) as store:
        spark = cache(lambda: open_lake(endpoints.spark_url, objects, on_step))
        try:
            yield Pipeline(
                settings=settings,
                endpoints=endpoints,
                source=source_of(settings, endpoints, on_step),
                objects=objects,
                store=store,
                open_lake=spark if make_lake is None else cache(lambda: make_lake(objects, on_step)),
                owner=f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}",
                clock=utc_now,
                new_id=uuid.uuid4,
                on_step=on_step,
            )
        finally:
            if spark.cache_info().currsize:
                spark().close()


def source_of(settings: Settings, endpoints: Endpoints, on_step: OnStep = no_step) -> Source:
    """The one place that asks for the kind of source. Connects to nothing."""
    source = settings.source
    if isinstance(source, PostgresSource):
        return PostgresDatabase(
            stream=settings.name,
            url=endpoints.source_url,
            settings=source,
            tables=settings.tables,
            on_step=on_step,
        )
    folder = (settings.folder / source.path).resolve()
    return DebeziumFolder(stream=settings.name, folder=folder, settings=source, tables=settings.tables, on_step=on_step)


def open_object_store(settings: Settings, below: str = "") -> ObjectStore:
    """The lake's, or a part of it. One on S3 is proven before the first put."""
    url = f"{settings.lake_url}/{below}".rstrip("/")
    objects = open_object_store_at(url, settings.object_store)
    return ProvenObjectStore(objects) if settings.on_s3 else objects


def open_object_store_at(url: str, server: ObjectStoreSettings) -> ObjectStore:
    """`file:///…` or `s3://…`. Raises SettingsError for any other scheme, before any call."""
    parts = urlsplit(url)
    if parts.scheme == "s3":
        return _open_s3(url, server)
    if parts.scheme != "file":
        raise SettingsError(
            f"the lake {url!r} is of the kind {parts.scheme!r}",
            expected="a folder, as a path or as file:///…, or s3://bucket/prefix",
            remedy="mend lake in pipeline.yml",
        )
    return LocalObjectStore(Path(unquote(parts.path)))


def _open_s3(url: str, server: ObjectStoreSettings) -> ObjectStore:
    from cdc_pipeline.object_store.s3 import S3ObjectStore
    from cdc_pipeline.object_store.s3_location import S3Location

    try:
        location = parse_s3(url)
    except ValueError as error:
        raise SettingsError(str(error), remedy="mend the URL of the lake") from error
    return S3ObjectStore(
        S3Location(
            bucket=location.bucket,
            prefix=location.prefix,
            endpoint=server.endpoint and parse_endpoint(server.endpoint, allow_http=server.allow_http),
            region=server.region,
            path_style=server.path_style,
        )
    )


def open_lake(spark_url: str, objects: ObjectStore, on_step: OnStep) -> "SparkLake":
    """Spark writes to the bucket by itself: its session is opened only to a store that is proven."""
    from cdc_pipeline.lake.session import cancel, connect
    from cdc_pipeline.lake.spark_lake import SparkLake

    prove = objects.prove if isinstance(objects, ProvenObjectStore) else None
    return SparkLake(
        open_session=lambda: connect(spark_url, first=prove),
        store=objects,
        clock=utc_now,
        on_step=on_step,
        cancel_session=lambda session, tag: cancel(spark_url, session, tag),
    )


def utc_now() -> datetime:
    return datetime.now(tz=UTC)


@contextmanager
def opened_pipeline(config: Path | None = None, *, on_step: OnStep = no_step) -> Iterator[Pipeline]:
    """Settings from `config`, CDC_CONFIG or ./pipeline.yml; servers that run already, found by CDC_ variables or home.

    Raises SettingsError before anything is touched.
    """
    settings, found = _configured(config)
    with left_on_termination(), open_pipeline(settings, found, on_step=on_step) as pipeline:
        yield pipeline


@contextmanager
def left_on_termination() -> Iterator[None]:
    """SIGTERM ends the block like an error: its lease is released, and what runs in its Spark session is cancelled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(_number: int, _frame: object) -> None:
        raise SystemExit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def configured_endpoints(config: Path | None = None) -> Endpoints:
    """Where the servers are now; read anew at each call, since an installation may move to other ports."""
    return _configured(config)[1]


def _configured(config: Path | None) -> tuple[Settings, Endpoints]:
    settings = load_settings(settings_path(config, os.environ))
    return settings, endpoints(settings, home_of(settings, os.environ))
