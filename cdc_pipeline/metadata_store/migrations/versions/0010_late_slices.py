"""A boundary counts the late slices that lie at it: together they are the place at which the stream goes on."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_STATEMENTS = (
    "ALTER TABLE cdc.boundary ADD COLUMN late_slices BIGINT DEFAULT 0 NOT NULL",
    """UPDATE cdc.boundary AS b SET late_slices = found.late
       FROM (SELECT boundary_id, count(*) AS late FROM cdc.slice WHERE late GROUP BY boundary_id) AS found
       WHERE found.boundary_id = b.boundary_id""",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
