"""Slice runs that go on for a while, and apply slices as they come."""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("ALTER TABLE cdc.slice_request ADD COLUMN goes_on_until TIMESTAMP WITH TIME ZONE")


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
