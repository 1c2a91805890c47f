"""Finds the stream partitions of which more can come, however many were read to their ends."""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_STATEMENT = """
    CREATE INDEX stream_partition_live ON cdc.stream_partition (stream, stream_partition)
    WHERE NOT (last_position ? 'ended')
    """


def upgrade() -> None:
    op.get_bind().exec_driver_sql(_STATEMENT)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
