"""Tables of streams without an order promise below what version nothing comes any more, so that tombstones can go."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_STATEMENTS = (
    "ALTER TABLE cdc.source_table ADD COLUMN horizon TEXT COLLATE \"C\" DEFAULT '' NOT NULL",
    "ALTER TABLE cdc.source_table ADD COLUMN horizon_number BIGINT DEFAULT 0 NOT NULL",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
