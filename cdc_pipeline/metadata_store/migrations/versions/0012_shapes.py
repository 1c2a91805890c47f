"""The catalogue's description of each table as it was followed last, and tables that ask for a snapshot."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        "ALTER TABLE cdc.source_table ADD COLUMN shape JSONB,"
        " ADD COLUMN snapshot_wanted BOOLEAN DEFAULT false NOT NULL"
    )


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
