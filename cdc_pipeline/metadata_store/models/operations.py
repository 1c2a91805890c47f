"""The tables of failures (tables, slice files, quarantined events), and of slice requests and their workers."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSON

from cdc_pipeline.metadata_store.models.columns import NOW, State, offset, one_of, table_id, time
from cdc_pipeline.metadata_store.models.ledger import metadata
from cdc_pipeline.metadata_store.states import QuarantineState, RequestState

failing_table = Table(
    "failing_table",
    metadata,
    table_id(primary_key=True),
    Column("failures", Integer, nullable=False),
    time("failing_since", nullable=False),
    time("failed_at", nullable=False),
    time("next_try_at", nullable=False),
    Column("outage", Boolean, nullable=False),
    Column("error", Text, nullable=False),
)

damaged_slice = Table(
    "damaged_slice",
    metadata,
    Column("table_id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("found", Text, nullable=False),
    Column("expected", Text, nullable=False),
    time("first_seen_at", nullable=False),
    time("last_seen_at", nullable=False),
    ForeignKeyConstraint(["table_id", "number"], ["cdc.slice.table_id", "cdc.slice.number"]),
)

quarantine = Table(
    "quarantine",
    metadata,
    Column("quarantine_id", BigInteger, primary_key=True),
    table_id(),
    Column("stream_partition", Integer, nullable=False),
    offset("version"),
    offset("start_offset"),
    offset("end_offset"),
    Column("reason", Text, nullable=False),
    Column("column", Text, nullable=False),
    Column("payload", JSON, nullable=False),
    Column("state", State(QuarantineState), nullable=False, server_default=QuarantineState.WAITING),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=NOW),
    Column("snapshot_id", ForeignKey("cdc.snapshot.snapshot_id")),
    Column("place", Text, nullable=False),
    Column("slice_number", BigInteger),
    Column("decision", Text),
    time("decided_at"),
    one_of("state", QuarantineState),
    Index("quarantine_of_snapshot", "snapshot_id", "place", unique=True),
    Index("quarantine_waiting", "table_id", postgresql_where=text("state = 'waiting'")),
    Index("quarantine_replayed", "table_id", "slice_number", postgresql_where=text("state = 'replayed'")),
)


slice_request = Table(
    "slice_request",
    metadata,
    table_id(primary_key=True),
    Column("request_id", Uuid, nullable=False),
    Column("by_hand", Boolean, nullable=False),
    Column("state", State(RequestState), nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("worker", Text),
    time("requested_at", nullable=False),
    time("taken_at"),
    time("ended_at"),
    Column("report", JSON(none_as_null=True)),
    Column("error", Text),
    Column("log", Text),
    time("goes_on_until"),
    one_of("state", RequestState),
)

resident_worker = Table(
    "resident_worker",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("stream", Text, nullable=False),
    time("expires_at", nullable=False),
)
