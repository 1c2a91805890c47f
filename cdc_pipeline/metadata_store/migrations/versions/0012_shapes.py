"""The catalogue's description of each table as it was followed last, and tables that ask for a snapshot.

A slice file may have no row: it carries a change of columns that no event has shown.
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    statements = (
        "ALTER TABLE cdc.source_table ADD COLUMN shape JSONB,"
        " ADD COLUMN snapshot_wanted BOOLEAN DEFAULT false NOT NULL",
        "ALTER TABLE cdc.slice DROP CONSTRAINT slice_file, ADD CONSTRAINT slice_file CHECK"
        " ((path IS NULL AND sha256 IS NULL AND rows = 0)"
        " OR (path IS NOT NULL AND sha256 IS NOT NULL AND schema_id IS NOT NULL))",
    )
    for statement in statements:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
