"""The tables of snapshots and their tasks."""

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from cdc_pipeline.metadata_store.models.columns import NOW, State, count, offset, one_of, quoted, table_id, time
from cdc_pipeline.metadata_store.models.ledger import metadata
from cdc_pipeline.metadata_store.states import FINISHED_SNAPSHOTS, SnapshotState, TaskKind, TaskState

snapshot = Table(
    "snapshot",
    metadata,
    Column("snapshot_id", Text, primary_key=True),
    table_id(),
    Column("state", State(SnapshotState), nullable=False, server_default=SnapshotState.EXPORTING),
    offset("cutoff_offset"),
    offset("cutoff_version"),
    time("cutoff_time", nullable=False),
    Column("exported_snapshot", Text),
    Column("schema_id", Text, nullable=False),
    Column("fence_number", BigInteger),
    Column("lake_version", BigInteger),
    count("rows"),
    count("files"),
    count("bytes"),
    Column("error", Text),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=NOW),
    time("finished_at"),
    ForeignKeyConstraint(["table_id", "schema_id"], ["cdc.table_schema.table_id", "cdc.table_schema.schema_id"]),
    one_of("state", SnapshotState),
    Index(
        "snapshot_active",
        "table_id",
        unique=True,
        postgresql_where=text(f"state NOT IN ({quoted(FINISHED_SNAPSHOTS)})"),
    ),
)

snapshot_task = Table(
    "snapshot_task",
    metadata,
    Column("snapshot_id", ForeignKey("cdc.snapshot.snapshot_id"), primary_key=True),
    Column("kind", State(TaskKind), primary_key=True),
    Column("ordinal", Integer, primary_key=True, autoincrement=False),
    Column("state", State(TaskState), nullable=False, server_default=TaskState.WAITING),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("slot", Text),
    time("lease_expires_at"),
    Column("input", JSONB, nullable=False),
    Column("output", JSONB(none_as_null=True)),
    count("rows"),
    count("bytes"),
    Column("error", Text),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=NOW),
    time("started_at"),
    time("finished_at"),
    one_of("kind", TaskKind),
    one_of("state", TaskState),
    Index(
        "snapshot_task_open",
        "snapshot_id",
        "kind",
        "ordinal",
        postgresql_where=text("state IN ('waiting', 'claimed')"),
    ),
)
