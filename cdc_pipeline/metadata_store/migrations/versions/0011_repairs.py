"""A table under repair is known as such before its late slice is decided: deletes leave tombstones until then."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        "ALTER TABLE cdc.source_table ADD COLUMN under_repair BOOLEAN DEFAULT false NOT NULL"
    )


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
