"""The metadata store: its operations by noun, over one engine."""

from collections.abc import Iterator
from contextlib import contextmanager

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


class MetadataStore:
    """The metadata store of the pipeline that reads one stream. Safe for several threads.

    Every method is one transaction and one named step. Tables are found by their names within the stream, and methods
    that list tables, quarantined events or others list only those of the stream.
    """

    def __init__(self, database: Database, stream: str) -> None:
        self.streams = Streams(database=database)
        self.source_files = SourceFiles(database=database)
        self.consumers = Consumers(database=database)
        self.tables = Tables(database=database, stream=stream)
        self.stale_tables = StaleTables(database=database)
        self.rebuild = Rebuild(database=database)
        self.removal = Removal(database=database)
        self.retention = Retention(database=database, stream=stream)
        self.base_rows = BaseRows(database=database, stream=stream)
        self.registration = Registration(database=database)
        self.leases = Leases(database=database)
        self.slice_requests = SliceRequests(database=database, stream=stream)
        self.slices = Slices(database=database)
        self.claims = Claims(database=database)
        self.lake_positions = LakePositions(database=database)
        self.rewinds = Rewinds(database=database)
        self.snapshots = Snapshots(database=database)
        self.snapshot_tasks = SnapshotTasks(database=database)
        self.snapshot_history = SnapshotHistory(database=database)
        self.quarantine = Quarantine(database=database, stream=stream)
        self.quarantined_rows = QuarantinedRows(database=database)
        self.tombstone_horizons = TombstoneHorizons(database=database)
        self.failures = Failures(database=database)
        self.inspection = Inspection(database=database, stream=stream)


@contextmanager
def open_metadata_store(url: str, *, stream: str, on_step: OnStep = no_step) -> Iterator[MetadataStore]:
    """Opens the store for the block; call it once per process.

    Raises SetupError when the store does not have the revision of this code: see `upgrade`.
    """
    database = Database(engine=create_store_engine(url), on_step=on_step)
    try:
        with database.transaction("store.open") as connection:
            check_current(connection)
        yield MetadataStore(database, stream)
    finally:
        database.engine.dispose()
