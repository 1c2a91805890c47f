"""A table may be set back to an earlier position: claims behind it are rewound, and their slices wait again."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_STATEMENTS = (
    "ALTER TABLE cdc.claim DROP CONSTRAINT claim_state_check",
    "ALTER TABLE cdc.claim ADD CHECK (state IN ('claimed', 'applied', 'failed', 'rewound'))",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
