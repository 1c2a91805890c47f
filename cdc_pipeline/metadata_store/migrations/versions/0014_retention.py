"""How far a table's slices are forgotten, and the indexes by which claims and boundaries are deleted.

`forgotten_through`: nothing needs these slices any more. `cleaned_through`: their files are deleted.
"""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_STATEMENTS = (
    "ALTER TABLE cdc.source_table ADD COLUMN forgotten_through BIGINT DEFAULT 0 NOT NULL,"
    " ADD COLUMN cleaned_through BIGINT DEFAULT 0 NOT NULL",
    # Without them each deleted boundary and claim reads all slices, to find that none refers to it.
    "CREATE INDEX slice_at_boundary ON cdc.slice (boundary_id)",
    "CREATE INDEX slice_of_claim ON cdc.slice (claim_id) WHERE claim_id IS NOT NULL",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
