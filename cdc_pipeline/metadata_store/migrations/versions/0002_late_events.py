"""Events that come out of order: where slices truncate, which of them are late, and what a claim had to leave open."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_STATEMENTS = (
    "ALTER TABLE cdc.claim ADD COLUMN rows_parked BIGINT DEFAULT 0 NOT NULL",
    "ALTER TABLE cdc.claim ADD COLUMN rows_tied BIGINT DEFAULT 0 NOT NULL",
    'ALTER TABLE cdc.slice ADD COLUMN truncated_at TEXT COLLATE "C"',
    "ALTER TABLE cdc.slice ADD COLUMN late BOOLEAN DEFAULT false NOT NULL",
    "CREATE INDEX slice_truncated ON cdc.slice (table_id, number) WHERE truncated_at IS NOT NULL",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
