"""A metadata store with one stream of two partitions and two tables, and the cuts that a consumer would make."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid5

from sqlalchemy import Engine

from cdc_pipeline.metadata_store.database import Database, create_store_engine
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.metadata_store.ledger.cut import Cut, PartitionRange, Slice
from cdc_pipeline.metadata_store.ledger.records import Assignment, Boundary, Claim, SourceTable, Stream
from cdc_pipeline.metadata_store.ledger.tables import NewTable
from cdc_pipeline.metadata_store.snapshots.snapshots import NewSnapshot, SnapshotPublication
from cdc_pipeline.metadata_store.states import SnapshotState
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.metadata_store.upgrade import upgrade
from cdc_pipeline.record import ClaimCounts, Column, TableName, TableSchema, encode_position
from cdc_pipeline.steps import OnStep, no_step
from cdc_pipeline.time_slice import label_of

NAMESPACE = UUID("5b0d2f6e-94a5-4f0c-8a0a-6f7a52c7a001")
MORNING = datetime(2024, 1, 1, 8, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
STREAM = Stream(name="shop", source_system_identifier="7000", source_timeline=1, slot="cdc_shop")
PARTITIONS = (0, 1)
OWNER = "consumer"
SCHEMA = TableSchema(
    columns=(Column(name="order_id", type="int8"), Column(name="note", type="text")), key=("order_id",)
)
NO_COUNTS = ClaimCounts()
SETTINGS = {"id": ["order_id"], "partition_by": [], "deletes": "hard"}


def mark_applied(
    store: MetadataStore, lease: Lease, claim: Claim, counts: ClaimCounts = NO_COUNTS, *, lake_version: int
) -> None:
    """Marks the claim as applied, as by a commit of a second and a half that wrote 40 bytes."""
    store.claims.mark_applied(lease, claim, counts, lake_version=lake_version, size_bytes=40, seconds=1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """Positions are whole minutes: position n is committed n minutes after MORNING."""

    url: str
    engine: Engine
    store: MetadataStore
    orders: SourceTable
    customers: SourceTable
    schema_id: str
    assignment: Assignment

    def register(self, cut: Cut) -> Boundary:
        """As the consumer that took the stream first."""
        return self.store.registration.register(cut, self.assignment)

    def cut(
        self,
        start: int,
        end: int,
        rows: Mapping[tuple[int, int], int],
        *,
        requested: bool = False,
        salt: str = "",
    ) -> Cut:
        """`rows`: (table id, stream partition) -> rows of the slice file; 0: the table was read, and nothing came."""
        return Cut(
            stream=STREAM.name,
            start=encode_position(start),
            position=encode_position(end),
            commit_time=MORNING + end * MINUTE,
            label=label_of(MORNING + end * MINUTE, MINUTE),
            partitions=tuple(
                PartitionRange(
                    stream_partition=partition, start_offset=encode_position(start), end_offset=encode_position(end)
                )
                for partition in PARTITIONS
            ),
            tables=tuple(sorted({table_id for table_id, _ in rows})),
            slices=tuple(self.slice(*key, count, end, salt) for key, count in rows.items() if count),
            requested=requested,
        )

    def slice(self, table_id: int, stream_partition: int, rows: int, end: int, salt: str) -> Slice:
        sha256 = uuid5(NAMESPACE, f"{table_id} {stream_partition} {end} {salt}").hex * 2
        return Slice(
            table_id=table_id,
            stream_partition=stream_partition,
            path=f"cdc-event/{sha256}.parquet",
            sha256=sha256,
            size_bytes=10,
            rows=rows,
            schema_id=self.schema_id,
        )

    def register_orders(self, cuts: int, *, start: int = 0, requested: bool = False, salt: str = "") -> Boundary:
        """Cuts of one position each, every one with five rows of orders in each stream partition."""
        rows = dict.fromkeys(((self.orders.table_id, partition) for partition in PARTITIONS), 5)
        boundaries = [
            self.register(self.cut(end - 1, end, rows, requested=requested, salt=salt))
            for end in range(start + 1, start + cuts + 1)
        ]
        return boundaries[-1]

    def acquire(self, owner: str = "worker", *, duration: timedelta = MINUTE) -> Lease:
        return self.store.leases.acquire(self.orders.table_id, owner=owner, duration=duration)

    def claim(self, lease: Lease, *, after: int, most_slices: int = 100) -> Claim:
        slices = self.store.slices.next_slices(
            lease.table_id, after_number=after, most_slices=most_slices, most_rows=1_000_000
        )
        claim_id = uuid5(NAMESPACE, f"{lease.table_id} {lease.epoch} {after}")
        return self.store.claims.record_claim(lease, slices, claim_id=claim_id)

    def apply(self, lease: Lease, *, after: int, lake_version: int, most_slices: int = 100) -> Claim:
        claim = self.claim(lease, after=after, most_slices=most_slices)
        mark_applied(self.store, lease, claim, ClaimCounts(read=claim.slices * 5), lake_version=lake_version)
        return claim

    def publish(self, lease: Lease, cutoff: int, *, lake_version: int = 1, snapshot_id: str = "first") -> None:
        """A snapshot of orders, from its creation to its publication."""
        self.publish_new(lease, self.new_snapshot(cutoff, snapshot_id=snapshot_id), lake_version=lake_version)

    def publish_new(self, lease: Lease, new: NewSnapshot, *, lake_version: int = 1) -> None:
        snapshots = self.store.snapshots
        snapshots.create_snapshot(new)
        snapshots.set_snapshot_state(new.snapshot_id, SnapshotState.PUBLISHING)
        fence = snapshots.fence_at(lease.table_id, new.cutoff_offset)
        publication = SnapshotPublication(fence_number=fence, lake_version=lake_version, rows=100, files=2, bytes=1000)
        snapshots.publish_snapshot(lease, new.snapshot_id, publication)

    def new_snapshot(self, cutoff: int, *, snapshot_id: str = "first") -> NewSnapshot:
        return NewSnapshot(
            snapshot_id=snapshot_id,
            table_id=self.orders.table_id,
            cutoff_offset=encode_position(cutoff),
            cutoff_version=f"{encode_position(cutoff)}-00000000",
            cutoff_time=MORNING + cutoff * MINUTE,
            schema_id=self.schema_id,
        )


def count_waiting(store: MetadataStore, table_id: int) -> int:
    """The number of the table's slices that wait to be applied."""
    return len(store.slices.waiting_through(table_id, 1 << 60))


def new_table(table: str, *, oid: int = 16_400) -> NewTable:
    name = TableName(database="shop", schema="public", table=table)
    return NewTable(
        name=name, stream=STREAM.name, source_oid=oid, settings=SETTINGS, table_uuid=uuid5(NAMESPACE, str(name))
    )


@contextmanager
def opened_store(url: str, on_step: OnStep = no_step) -> Iterator[tuple[Engine, MetadataStore]]:
    """An upgraded store in the empty database at `url`."""
    upgrade(url)
    engine = create_store_engine(url)
    try:
        yield engine, MetadataStore(Database(engine=engine, on_step=on_step), STREAM.name)
    finally:
        engine.dispose()


@contextmanager
def opened_shop(url: str, on_step: OnStep = no_step) -> Iterator[Shop]:
    """The stream is taken once, with epoch 1, and begins at position 0."""
    with opened_store(url, on_step) as (engine, store):
        store.streams.register_stream(STREAM, stream_partitions=len(PARTITIONS))
        assignment = store.streams.take_stream(STREAM.name, owner=OWNER, first_offset=encode_position(0))
        orders = store.tables.register_table(new_table("orders"))
        customers = store.tables.register_table(new_table("customers"))
        for table in (orders, customers):
            schema_id = store.tables.record_schema(table.table_id, SCHEMA, first_offset=encode_position(0))
        yield Shop(
            url=url,
            engine=engine,
            store=store,
            orders=orders,
            customers=customers,
            schema_id=schema_id,
            assignment=assignment,
        )
