"""A claim tells the session in which its owner works, so that a successor can cancel what was left behind."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("ALTER TABLE cdc.claim ADD COLUMN session TEXT")


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
