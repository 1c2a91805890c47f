"""How much of the source's log the slot keeps back, and how much more it may, as it was seen last."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("""
        CREATE TABLE cdc.source_log (
            stream TEXT NOT NULL,
            wal_status TEXT,
            retained_bytes BIGINT,
            most_bytes BIGINT,
            bytes_left BIGINT,
            warning TEXT,
            seen_at TIMESTAMP WITH TIME ZONE NOT NULL,
            PRIMARY KEY (stream),
            FOREIGN KEY(stream) REFERENCES cdc.stream (name)
        )
        """)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
