"""The tables of pipeline.yml in the metadata store."""

from collections.abc import Sequence

from cdc_pipeline.metadata_store.rows import SourceTable
from cdc_pipeline.metadata_store.tables import NewTable
from cdc_pipeline.record import TableName, TableSchema, encode_position
from cdc_pipeline.wiring import Pipeline


def register_table(
    pipeline: Pipeline, name: TableName, *, source_oid: int, key: Sequence[str], schema: TableSchema | None
) -> SourceTable:
    """Idempotent. `schema` counts only for a table that has none yet; None where events have to show it first."""
    settings = pipeline.settings.table(name)
    row = pipeline.store.tables.register_table(
        NewTable(
            name=name,
            stream=pipeline.settings.name,
            source_oid=source_oid,
            settings=settings.model_dump(mode="json", exclude={"name"}) | {"id": list(key)},
            table_uuid=pipeline.new_id(),
        )
    )
    if row.schema_id is None and schema is not None:
        pipeline.store.tables.record_schema(row.table_id, schema, first_offset=encode_position(0))
    return row


def table_ids(pipeline: Pipeline) -> dict[TableName, int]:
    return {table.table: pipeline.store.tables.table(table.table).table_id for table in pipeline.settings.tables}


def ignored_truncates(pipeline: Pipeline) -> frozenset[TableName]:
    return frozenset(table.table for table in pipeline.settings.tables if table.truncate == "ignore")
