"""The metadata store: its operations by noun, over one engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cdc_pipeline.metadata_store.database import Database, create_store_engine
from cdc_pipeline.metadata_store.inspection.queries import Inspection
from cdc_pipeline.metadata_store.leases import Leases
from cdc_pipeline.metadata_store.ledger.claims import Claims
from cdc_pipeline.metadata_store.ledger.consumers import Consumers, SourceFiles
from cdc_pipeline.metadata_store.ledger.failures import Failures
from cdc_pipeline.metadata_store.ledger.lake_positions import LakePositions
from cdc_pipeline.metadata_store.ledger.quarantine import Quarantine
from cdc_pipeline.metadata_store.ledger.registration import Registration
from cdc_pipeline.metadata_store.ledger.slices import Slices
from cdc_pipeline.metadata_store.ledger.stale_tables import StaleTables
from cdc_pipeline.metadata_store.ledger.streams import Streams
from cdc_pipeline.metadata_store.ledger.tables import Tables
from cdc_pipeline.metadata_store.ledger.tombstone_horizon import TombstoneHorizons
from cdc_pipeline.metadata_store.operations.rebuild import Rebuild
from cdc_pipeline.metadata_store.operations.rebuild_from_base import BaseRows
from cdc_pipeline.metadata_store.operations.removal import Removal
from cdc_pipeline.metadata_store.operations.retention import Retention
from cdc_pipeline.metadata_store.operations.rewinds import Rewinds
from cdc_pipeline.metadata_store.slice_requests import SliceRequests
from cdc_pipeline.metadata_store.snapshots.quarantined_rows import QuarantinedRows
from cdc_pipeline.metadata_store.snapshots.snapshot_history import SnapshotHistory
from cdc_pipeline.metadata_store.snapshots.snapshot_tasks import SnapshotTasks
from cdc_pipeline.metadata_store.snapshots.snapshots import Snapshots
from cdc_pipeline.metadata_store.upgrade import check_current
from cdc_pipeline.steps import OnStep, no_step


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataStore:
    """The metadata store of the pipeline that reads one stream. Safe for several threads.

    Every method is one transaction and one named step. Tables are found by their names within the stream, and methods
    that list tables, quarantined events or others list only those of the stream.
    """

    streams: Streams
    source_files: SourceFiles
    consumers: Consumers
    tables: Tables
    stale_tables: StaleTables
    rebuild: Rebuild
    removal: Removal
    retention: Retention
    base_rows: BaseRows
    registration: Registration
    leases: Leases
    slice_requests: SliceRequests
    slices: Slices
    claims: Claims
    lake_positions: LakePositions
    rewinds: Rewinds
    snapshots: Snapshots
    snapshot_tasks: SnapshotTasks
    snapshot_history: SnapshotHistory
    quarantine: Quarantine
    quarantined_rows: QuarantinedRows
    tombstone_horizons: TombstoneHorizons
    failures: Failures
    inspection: Inspection


def metadata_store(database: Database, stream: str) -> MetadataStore:
    return MetadataStore(
        streams=Streams(database=database),
        source_files=SourceFiles(database=database),
        consumers=Consumers(database=database),
        tables=Tables(database=database, stream=stream),
        stale_tables=StaleTables(database=database),
        rebuild=Rebuild(database=database),
        removal=Removal(database=database),
        retention=Retention(database=database, stream=stream),
        base_rows=BaseRows(database=database, stream=stream),
        registration=Registration(database=database),
        leases=Leases(database=database),
        slice_requests=SliceRequests(database=database, stream=stream),
        slices=Slices(database=database),
        claims=Claims(database=database),
        lake_positions=LakePositions(database=database),
        rewinds=Rewinds(database=database),
        snapshots=Snapshots(database=database),
        snapshot_tasks=SnapshotTasks(database=database),
        snapshot_history=SnapshotHistory(database=database),
        quarantine=Quarantine(database=database, stream=stream),
        quarantined_rows=QuarantinedRows(database=database),
        tombstone_horizons=TombstoneHorizons(database=database),
        failures=Failures(database=database),
        inspection=Inspection(database=database, stream=stream),
    )


@contextmanager
def open_metadata_store(url: str, *, stream: str, on_step: OnStep = no_step) -> Iterator[MetadataStore]:
    """Opens the store for the block; call it once per process.

    Raises SetupError when the store does not have the revision of this code: see `upgrade`.
    """
    database = Database(engine=create_store_engine(url), on_step=on_step)
    try:
        with database.transaction("store.open") as connection:
            check_current(connection)
        yield metadata_store(database, stream)
    finally:
        database.engine.dispose()
