"""Tables that fail pause and park; slice files that are not what was registered are known by name."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_STATEMENTS = (
    """
    CREATE TABLE cdc.failing_table (
        table_id INTEGER NOT NULL,
        failures INTEGER NOT NULL,
        failing_since TIMESTAMP WITH TIME ZONE NOT NULL,
        failed_at TIMESTAMP WITH TIME ZONE NOT NULL,
        next_try_at TIMESTAMP WITH TIME ZONE NOT NULL,
        outage BOOLEAN NOT NULL,
        error TEXT NOT NULL,
        PRIMARY KEY (table_id),
        FOREIGN KEY(table_id) REFERENCES cdc.source_table (table_id)
    )
    """,
    """
    CREATE TABLE cdc.damaged_slice (
        table_id INTEGER NOT NULL,
        number BIGINT NOT NULL,
        found TEXT NOT NULL,
        expected TEXT NOT NULL,
        first_seen_at TIMESTAMP WITH TIME ZONE NOT NULL,
        last_seen_at TIMESTAMP WITH TIME ZONE NOT NULL,
        PRIMARY KEY (table_id, number),
        FOREIGN KEY(table_id, number) REFERENCES cdc.slice (table_id, number)
    )
    """,
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
