"""Requests to apply a table's slices, and the resident workers that take them."""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_STATEMENTS = (
    """
    CREATE TABLE cdc.slice_request (
        table_id INTEGER NOT NULL,
        request_id UUID NOT NULL,
        by_hand BOOLEAN NOT NULL,
        state TEXT NOT NULL,
        attempts INTEGER DEFAULT 0 NOT NULL,
        worker TEXT,
        requested_at TIMESTAMP WITH TIME ZONE NOT NULL,
        taken_at TIMESTAMP WITH TIME ZONE,
        ended_at TIMESTAMP WITH TIME ZONE,
        report JSON,
        error TEXT,
        log TEXT,
        PRIMARY KEY (table_id),
        CHECK (state IN ('requested', 'taken', 'done', 'failed', 'cancelled')),
        FOREIGN KEY(table_id) REFERENCES cdc.source_table (table_id)
    )
    """,
    """
    CREATE TABLE cdc.resident_worker (
        owner TEXT NOT NULL,
        stream TEXT NOT NULL,
        expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
        PRIMARY KEY (owner)
    )
    """,
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
