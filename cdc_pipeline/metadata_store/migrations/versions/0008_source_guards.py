"""Tables whose changes are missing from the stream are stale, and a stream says what stopped it."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_STATEMENTS = (
    "ALTER TABLE cdc.source_table ADD COLUMN publication_mark TEXT",
    "ALTER TABLE cdc.source_table DROP CONSTRAINT source_table_state_check",
    """
    ALTER TABLE cdc.source_table ADD CONSTRAINT source_table_state_check
    CHECK (state IN ('registered', 'snapshotting', 'live', 'parked', 'stale'))
    """,
    "ALTER TABLE cdc.stream_partition ADD COLUMN alarm TEXT",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
