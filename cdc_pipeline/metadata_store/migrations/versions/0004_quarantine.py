"""Kept events come back: from snapshots too, as late slices of an empty range beside those of a boundary."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_STATEMENTS = (
    "ALTER TABLE cdc.slice DROP CONSTRAINT slice_range",
    "ALTER TABLE cdc.slice ADD CONSTRAINT slice_range"
    " CHECK (start_offset < end_offset OR (late AND start_offset = end_offset))",
    "ALTER TABLE cdc.slice DROP CONSTRAINT slice_table_id_boundary_id_stream_partition_key",
    "CREATE INDEX slice_of_boundary ON cdc.slice (table_id, boundary_id, number)",
    "CREATE UNIQUE INDEX slice_once ON cdc.slice (table_id, boundary_id, stream_partition) WHERE NOT late",
    "CREATE INDEX slice_late ON cdc.slice (table_id) WHERE late AND state = 'registered'",
    "ALTER TABLE cdc.quarantine ADD COLUMN snapshot_id TEXT REFERENCES cdc.snapshot (snapshot_id)",
    "ALTER TABLE cdc.quarantine ADD COLUMN place TEXT",
    "ALTER TABLE cdc.quarantine ADD COLUMN slice_number BIGINT",
    "ALTER TABLE cdc.quarantine ADD COLUMN decision TEXT",
    "ALTER TABLE cdc.quarantine ADD COLUMN decided_at timestamptz",
    "ALTER TABLE cdc.quarantine DROP CONSTRAINT quarantine_state_check",
    "ALTER TABLE cdc.quarantine ADD CHECK (state IN ('waiting', 'replayed', 'dropped'))",
    "CREATE UNIQUE INDEX quarantine_of_snapshot ON cdc.quarantine (snapshot_id, place)",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
