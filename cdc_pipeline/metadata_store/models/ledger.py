"""The tables of streams, slices, claims and leases."""

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
from sqlalchemy.dialects.postgresql import JSONB, ExcludeConstraint

from cdc_pipeline.metadata_store.models.columns import (
    NOW,
    SLICE_RANGE,
    State,
    count,
    offset,
    one_of,
    table_id,
    time,
)
from cdc_pipeline.metadata_store.states import (
    ClaimState,
    SliceState,
    TableState,
)

SCHEMA = "cdc"
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
    Column("alarm", Text),
    Index(
        "stream_partition_live", "stream", "stream_partition", postgresql_where=text("NOT (last_position ? 'ended')")
    ),
)

consumer = Table(
    "consumer",
    metadata,
    Column("stream", ForeignKey("cdc.stream.name", ondelete="CASCADE"), primary_key=True),
    Column("owner", Text, primary_key=True),
    time("seen_at", nullable=False),
    time("expires_at", nullable=False),
)

source_log = Table(
    "source_log",
    metadata,
    Column("stream", ForeignKey("cdc.stream.name"), primary_key=True),
    Column("wal_status", Text),
    Column("retained_bytes", BigInteger),
    Column("most_bytes", BigInteger),
    Column("bytes_left", BigInteger),
    Column("warning", Text),
    time("seen_at", nullable=False),
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
    Column("state_reason", Text),
    Column("next_slice_number", BigInteger, nullable=False, server_default=text("1")),
    offset("cutoff_offset", nullable=True),
    offset("cutoff_version", nullable=True),
    time("cutoff_time"),
    Column("schema_id", Text),
    Column("settings", JSONB, nullable=False),
    Column("horizon", Text(collation="C"), nullable=False, server_default=text("''")),
    count("horizon_number"),
    Column("published_as", Text),
    Column("under_repair", Boolean, nullable=False, server_default=text("false")),
    Column("shape", JSONB(none_as_null=True)),
    Column("snapshot_wanted", Boolean, nullable=False, server_default=text("false")),
    offset("halted_at", nullable=True),
    Column("registered_at", DateTime(timezone=True), nullable=False, server_default=NOW),
    count("forgotten_through"),
    count("cleaned_through"),
    offset("followed_at", nullable=True),
    UniqueConstraint("stream", "database_name", "schema_name", "table_name"),
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
    count("late_slices"),
    UniqueConstraint("stream", "position"),
    Index("boundary_requested", "stream", "boundary_id", postgresql_where=text("requested")),
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
    count("rows_incomplete"),
    count("rows_tied"),
    Column("session", Text),
    one_of("state", ClaimState),
    CheckConstraint("first_number <= last_number", name="claim_bounds"),
    Index("claim_first_number", "table_id", "first_number"),
    Index("claim_open", "table_id", unique=True, postgresql_where=text("state = 'claimed'")),
    Index("claim_started_at", "started_at"),
    Index(
        "claim_incomplete",
        "table_id",
        postgresql_include=["first_number", "lake_version", "rows_incomplete"],
        postgresql_where=text("rows_incomplete > 0 AND state = 'applied'"),
    ),
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
    Column("path", Text, nullable=False),
    count("size_bytes"),
    count("rows"),
    Column("sha256", Text, nullable=False),
    Column("schema_id", Text, nullable=False),
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
    ForeignKeyConstraint(["table_id", "schema_id"], ["cdc.table_schema.table_id", "cdc.table_schema.schema_id"]),
    one_of("state", SliceState),
    CheckConstraint("start_offset < end_offset OR (late AND start_offset = end_offset)", name="slice_range"),
    ExcludeConstraint((literal_column(SLICE_RANGE), "&&"), using="gist", name="slice_ranges_disjoint"),
    Index("slice_registered", "table_id", "number", postgresql_where=text("state = 'registered'")),
    Index("slice_at_boundary", "boundary_id"),
    Index("slice_of_claim", "claim_id", postgresql_where=text("claim_id IS NOT NULL")),
    Index("slice_of_boundary", "table_id", "boundary_id", "number"),
    Index("slice_once", "table_id", "boundary_id", "stream_partition", unique=True, postgresql_where=text("NOT late")),
    Index("slice_late", "table_id", postgresql_where=text("late AND state = 'registered'")),
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
