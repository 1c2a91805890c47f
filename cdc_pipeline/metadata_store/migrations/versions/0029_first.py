"""The first shape of the metadata store: the tables as the code declares them, and names of tables as `TableName` has.

Until the first release each change of the tables raises this revision. The first migration after the release replaces
`create_all` by the SQL of that day: otherwise an empty store would get its change twice.
"""

from alembic import op

from cdc_pipeline.metadata_store.models import metadata
from cdc_pipeline.metadata_store.models.columns import OFFSET_RANGE

revision = "0029"
down_revision = None

_PART = """CASE WHEN {0} ~ '^"|[.]' THEN '"' || replace({0}, '"', '""') || '"' ELSE {0} END"""
_NAME = " || '.' || ".join(map(_PART.format, ("database_name", "schema_name", "table_name")))
_TABLE_NAME = f"""
    CREATE FUNCTION cdc.table_name(database_name text, schema_name text, table_name text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN {_NAME}
    """


def upgrade() -> None:
    op.get_bind().exec_driver_sql(OFFSET_RANGE)
    metadata.create_all(op.get_bind())
    op.get_bind().exec_driver_sql(_TABLE_NAME)
