"""Drops the key bounds of a table: nobody ever wrote them. Each slice has its own key ranges."""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("ALTER TABLE cdc.source_table DROP COLUMN key_low, DROP COLUMN key_high")


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
