"""Tables are named within their stream, and each knows how far it was followed when something stopped it."""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_STATEMENTS = (
    """
    ALTER TABLE cdc.source_table
    ADD COLUMN halted_at TEXT COLLATE "C",
    ADD COLUMN registered_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    DROP CONSTRAINT source_table_database_name_schema_name_table_name_key,
    ADD UNIQUE (stream, database_name, schema_name, table_name)
    """,
    # A stale table was followed up to the last cut that has a slice of it; a failing one goes no further than today.
    """
    UPDATE cdc.source_table AS t
    SET halted_at = coalesce(
        (SELECT max(b.position) FROM cdc.slice AS s JOIN cdc.boundary AS b USING (boundary_id)
         WHERE s.table_id = t.table_id AND NOT s.late),
        t.cutoff_offset)
    WHERE state = 'stale' OR EXISTS (SELECT FROM cdc.failing_table AS f WHERE f.table_id = t.table_id)
    """,
    "CREATE INDEX quarantine_replayed ON cdc.quarantine (table_id, slice_number) WHERE state = 'replayed'",
    "CREATE INDEX claim_incomplete ON cdc.claim (table_id) WHERE rows_parked > 0 AND state = 'applied'",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
