"""The consumers that are alive: they share the stream partitions of a source that lets them stand alone."""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_STATEMENT = """
    CREATE TABLE cdc.consumer (
        stream TEXT NOT NULL REFERENCES cdc.stream (name) ON DELETE CASCADE,
        owner TEXT NOT NULL,
        seen_at TIMESTAMPTZ NOT NULL,
        expires_at TIMESTAMPTZ NOT NULL,
        PRIMARY KEY (stream, owner)
    )
    """


def upgrade() -> None:
    op.get_bind().exec_driver_sql(_STATEMENT)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
