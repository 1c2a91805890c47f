"""The metadata store as one value: its operations by noun, over one engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cdc_pipeline.metadata_store.base_rows import BaseRows
from cdc_pipeline.metadata_store.claims import Claims
from cdc_pipeline.metadata_store.database import Database, create_store_engine
from cdc_pipeline.metadata_store.failures import Failures
from cdc_pipeline.metadata_store.horizons import Horizons
from cdc_pipeline.metadata_store.inspection import Inspection
from cdc_pipeline.metadata_store.leases import Leases
from cdc_pipeline.metadata_store.positions import Positions
from cdc_pipeline.metadata_store.quarantine import Quarantine
from cdc_pipeline.metadata_store.rebuilding import Rebuilding
from cdc_pipeline.metadata_store.registry import Registry
from cdc_pipeline.metadata_store.removal import Removal
from cdc_pipeline.metadata_store.retention import Retention
from cdc_pipeline.metadata_store.rewinds import Rewinds
from cdc_pipeline.metadata_store.slices import Slices
from cdc_pipeline.metadata_store.snapshot_history import SnapshotHistory
from cdc_pipeline.metadata_store.snapshot_tasks import SnapshotTasks
from cdc_pipeline.metadata_store.snapshots import Snapshots
from cdc_pipeline.metadata_store.source_log import SourceLogs
from cdc_pipeline.metadata_store.stale_tables import StaleTables
from cdc_pipeline.metadata_store.streams import Streams
from cdc_pipeline.metadata_store.tables import Tables
from cdc_pipeline.metadata_store.upgrade import check_current
from cdc_pipeline.steps import OnStep, no_step


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataStore:
    """Safe for several threads. Every method is one transaction and one named step.

    It is opened for the pipeline that reads one stream: tables are found by their names within that stream, and what
    lists tables, events in quarantine or anything else lists what belongs to it.
    """

    streams: Streams
    tables: Tables
    stale_tables: StaleTables
    source_logs: SourceLogs
    rebuilding: Rebuilding
    removal: Removal
    retention: Retention
    base_rows: BaseRows
    registry: Registry
    leases: Leases
    slices: Slices
    claims: Claims
    positions: Positions
    rewinds: Rewinds
    snapshots: Snapshots
    snapshot_tasks: SnapshotTasks
    history: SnapshotHistory
    quarantine: Quarantine
    horizons: Horizons
    failures: Failures
    inspection: Inspection


def metadata_store(database: Database, stream: str) -> MetadataStore:
    return MetadataStore(
        streams=Streams(database=database),
        tables=Tables(database=database, stream=stream),
        stale_tables=StaleTables(database=database),
        source_logs=SourceLogs(database=database),
        rebuilding=Rebuilding(database=database),
        removal=Removal(database=database),
        retention=Retention(database=database, stream=stream),
        base_rows=BaseRows(database=database, stream=stream),
        registry=Registry(database=database),
        leases=Leases(database=database),
        slices=Slices(database=database),
        claims=Claims(database=database),
        positions=Positions(database=database),
        rewinds=Rewinds(database=database),
        snapshots=Snapshots(database=database),
        snapshot_tasks=SnapshotTasks(database=database),
        history=SnapshotHistory(database=database),
        quarantine=Quarantine(database=database, stream=stream),
        horizons=Horizons(database=database),
        failures=Failures(database=database),
        inspection=Inspection(database=database, stream=stream),
    )


@contextmanager
def open_metadata_store(url: str, *, stream: str, on_step: OnStep = no_step) -> Iterator[MetadataStore]:
    """Once per process. Raises SetupError when the store is not of this code's revision: see `upgrade`."""
    database = Database(engine=create_store_engine(url), on_step=on_step)
    try:
        with database.transaction("store.open") as connection:
            check_current(connection)
        yield metadata_store(database, stream)
    finally:
        database.engine.dispose()
