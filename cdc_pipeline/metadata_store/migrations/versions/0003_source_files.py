"""Streams that are read from files: which files were begun, and how far the source's log had come in each partition."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_STATEMENTS = (
    "ALTER TABLE cdc.stream_partition ADD COLUMN last_position JSONB DEFAULT '{}' NOT NULL",
    """
    CREATE TABLE cdc.source_file (
        stream TEXT NOT NULL REFERENCES cdc.stream (name),
        stream_partition INTEGER NOT NULL,
        number BIGINT NOT NULL,
        name TEXT COLLATE "C" NOT NULL,
        PRIMARY KEY (stream, stream_partition, number),
        UNIQUE (stream, stream_partition, name)
    )
    """,
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
