"""Names tables in SQL as `TableName` does: a part that contains a dot or starts with a quote is quoted."""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_PART = """CASE WHEN {0} ~ '^"|[.]' THEN '"' || replace({0}, '"', '""') || '"' ELSE {0} END"""
_NAME = " || '.' || ".join(map(_PART.format, ("database_name", "schema_name", "table_name")))
_STATEMENT = f"""
    CREATE FUNCTION cdc.table_name(database_name text, schema_name text, table_name text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN {_NAME}
    """


def upgrade() -> None:
    op.get_bind().exec_driver_sql(_STATEMENT)


def downgrade() -> None:
    """An older store is brought back from its backup."""
    raise NotImplementedError
