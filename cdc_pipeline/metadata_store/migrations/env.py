"""What alembic runs: the migrations of schema `cdc`, in the transaction that `upgrade` opened."""

from alembic import context

from cdc_pipeline.metadata_store.models import SCHEMA, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table_schema=SCHEMA,
)
context.run_migrations()
