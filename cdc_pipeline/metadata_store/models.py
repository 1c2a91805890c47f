"""The tables of the metadata store in schema `cdc`; a test holds the migrations equal to them."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    literal_column,
    text,
)
from sqlalchemy.dialects.postgresql import JSON, JSONB, ExcludeConstraint

from cdc_pipeline.metadata_store.columns import NOW, State, count, offset, one_of, quoted, table_id, time
from cdc_pipeline.metadata_store.states import (
    FINISHED_SNAPSHOTS,
    ClaimState,
    QuarantineState,
    SliceState,
    SnapshotState,
    TableState,
    TaskKind,
    TaskState,
)

SCHEMA = "cdc"
OFFSET_RANGE = 'CREATE TYPE cdc.offset_range AS RANGE (subtype = text, collation = "C")'
SLICE_RANGE = """cdc.offset_range(
    table_id::text || ':' || stream_partition::text || ':' || start_offset,
    table_id::text || ':' || stream_partition::text || ':' || end_offset)"""
"""One text range per slice: texts that share the prefix table:partition lie together, so no two tables meet."""

metadata = MetaData(schema=SCHEMA)

stream = Table(
    "stream",
    metadata,
    Column("name", Text, primary_key=True),
    Column("source_system_identifier", Text, nullable=False),
    Column("source_timeline", Integer, nullable=False),
    Column("slot", Text, nullable=False),
)

stream_partition = Table(
    "stream_partition",
    metadata,
    Column("stream", ForeignKey("cdc.stream.name"), primary_key=True),
    Column("stream_partition", Integer, primary_key=True),
    offset("next_offset", nullable=True),
    time("watermark"),
    Column("assignment_epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("assignment_owner", Text),
    time("label_start"),
    time("label_end"),
    Column("last_position", JSONB, nullable=False, server_default=text("'{}'")),
)

source_file = Table(
    "source_file",
    metadata,
    Column("stream", ForeignKey("cdc.stream.name"), primary_key=True),
    Column("stream_partition", Integer, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text(collation="C"), nullable=False),
    UniqueConstraint("stream", "stream_partition", "name"),
)

source_table = Table(
    "source_table",
    metadata,
    Column("table_id", Integer, primary_key=True),
    Column("table_uuid", Uuid, nullable=False, unique=True),
    Column("stream", ForeignKey("cdc.stream.name"), nullable=False),
    Column("database_name", Text, nullable=False),
    Column("schema_name", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("source_oid", BigInteger, nullable=False),
    Column("state", State(TableState), nullable=False, server_default=TableState.REGISTERED),
    Column("parked_reason", Text),
    Column("next_slice_number", BigInteger, nullable=False, server_default=text("1")),
    offset("cutoff_offset", nullable=True),
    offset("cutoff_version", nullable=True),
    time("cutoff_time"),
    Column("schema_id", Text),
    Column("settings", JSONB, nullable=False),
    Column("key_low", JSONB(none_as_null=True)),
    Column("key_high", JSONB(none_as_null=True)),
    UniqueConstraint("database_name", "schema_name", "table_name"),
    one_of("state", TableState),
)

table_schema = Table(
    "table_schema",
    metadata,
    table_id(primary_key=True),
    Column("schema_id", Text, primary_key=True),
    Column("document", JSONB, nullable=False),
    offset("first_offset"),
)

boundary = Table(
    "boundary",
    metadata,
    Column("boundary_id", BigInteger, primary_key=True),
    Column("stream", ForeignKey("cdc.stream.name"), nullable=False),
    offset("position"),
    time("commit_time", nullable=False),
    time("label_start", nullable=False),
    time("label_end", nullable=False),
    Column("requested", Boolean, nullable=False),
    Column("registered_at", DateTime(timezone=True), nullable=False, server_default=NOW),
    UniqueConstraint("stream", "position"),
)

claim = Table(
    "claim",
    metadata,
    Column("claim_id", Uuid, primary_key=True),
    table_id(),
    Column("first_number", BigInteger, nullable=False),
    Column("last_number", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("state", State(ClaimState), nullable=False, server_default=ClaimState.CLAIMED),
    count("slices"),
    count("rows_read"),
    count("rows_inserted"),
    count("rows_updated"),
    count("rows_deleted"),
    count("rows_ignored"),
    count("bytes"),
    Column("seconds", Double, nullable=False, server_default=text("0")),
    Column("lake_version", BigInteger),
    Column("error", Text),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=NOW),
    time("finished_at"),
    count("rows_parked"),
    count("rows_tied"),
    one_of("state", ClaimState),
    CheckConstraint("first_number <= last_number", name="claim_bounds"),
    Index("claim_first_number", "table_id", "first_number"),
    Index("claim_open", "table_id", unique=True, postgresql_where=text("state = 'claimed'")),
)

slice_table = Table(
    "slice",
    metadata,
    table_id(primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("slice_id", Text, nullable=False),
    Column("boundary_id", ForeignKey("cdc.boundary.boundary_id"), nullable=False),
    Column("stream_partition", Integer, nullable=False),
    time("label_start", nullable=False),
    time("label_end", nullable=False),
    offset("start_offset"),
    offset("end_offset"),
    Column("path", Text),
    count("size_bytes"),
    count("rows"),
    Column("sha256", Text),
    Column("schema_id", Text),
    count("key_changes"),
    count("partial_rows"),
    count("truncates"),
    Column("key_ranges", JSONB, nullable=False, server_default=text("'[]'")),
    Column("state", State(SliceState), nullable=False, server_default=SliceState.REGISTERED),
    Column("claim_id", ForeignKey("cdc.claim.claim_id")),
    Column("registered_at", DateTime(timezone=True), nullable=False, server_default=NOW),
    time("applied_at"),
    offset("truncated_at", nullable=True),
    Column("late", Boolean, nullable=False, server_default=text("false")),
    UniqueConstraint("table_id", "slice_id"),
    UniqueConstraint("table_id", "boundary_id", "stream_partition"),
    ForeignKeyConstraint(["table_id", "schema_id"], ["cdc.table_schema.table_id", "cdc.table_schema.schema_id"]),
    one_of("state", SliceState),
    CheckConstraint("start_offset < end_offset", name="slice_range"),
    CheckConstraint(
        "(path IS NULL AND sha256 IS NULL AND rows = 0)"
        " OR (path IS NOT NULL AND sha256 IS NOT NULL AND schema_id IS NOT NULL AND rows > 0)",
        name="slice_file",
    ),
    ExcludeConstraint((literal_column(SLICE_RANGE), "&&"), using="gist", name="slice_ranges_disjoint"),
    Index("slice_registered", "table_id", "number", postgresql_where=text("state = 'registered'")),
    Index(
        "slice_waiting",
        "table_id",
        "number",
        postgresql_where=text("state = 'registered' AND path IS NOT NULL"),
    ),
    Index("slice_with_file", "table_id", "number", postgresql_where=text("path IS NOT NULL")),
    Index("slice_truncated", "table_id", "number", postgresql_where=text("truncated_at IS NOT NULL")),
)

lease = Table(
    "lease",
    metadata,
    table_id(primary_key=True),
    Column("owner", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    time("expires_at", nullable=False),
    time("acquired_at", nullable=False),
    time("renewed_at", nullable=False),
)

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
    one_of("state", QuarantineState),
    Index("quarantine_waiting", "table_id", postgresql_where=text("state = 'waiting'")),
)
