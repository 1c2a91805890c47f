"""How far each table was read, in place of a row per empty slice; and the boundaries that no claim reaches over."""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_STATEMENTS = (
    'ALTER TABLE cdc.source_table ADD COLUMN followed_at TEXT COLLATE "C"',
    # Until now every cut had a slice of each table that was read, also an empty one.
    """
    UPDATE cdc.source_table AS t
    SET followed_at = (
        SELECT b.position FROM cdc.slice AS s JOIN cdc.boundary AS b USING (boundary_id)
        WHERE s.table_id = t.table_id AND NOT s.late
        ORDER BY s.boundary_id DESC LIMIT 1)
    """,
    "CREATE INDEX boundary_requested ON cdc.boundary (stream, boundary_id) WHERE requested",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
