"""The tables of pipeline.yml in the metadata store."""

from collections.abc import Sequence
from typing import Any

from cdc_pipeline.metadata_store.rows import SourceTable
from cdc_pipeline.metadata_store.tables import NewTable
from cdc_pipeline.record import TableName, TableSchema, encode_position
from cdc_pipeline.source_setup.lake_owner import own_lake_table
from cdc_pipeline.sources.postgres.shape import SourceShape
from cdc_pipeline.wiring import Pipeline


def register_table(
    pipeline: Pipeline,
    name: TableName,
    *,
    source_oid: int,
    key: Sequence[str],
    schema: TableSchema | None,
    publication_mark: str = "",
    shapes: Sequence[SourceShape] = (),
    begins_again: bool = False,
) -> SourceTable:
    """Idempotent. `schema` counts only for a table that has none yet; None where events have to show it first.

    `shapes`: those that its coming events may have. `begins_again`: for the snapshot that is to come, it is the
    table that it is now, whatever it was. Raises
    SettingsError, before anything is registered, for a new table that another pipeline has in the lake.
    """
    if pipeline.store.tables.find(name) is None:
        own_lake_table(pipeline, name)
    settings = _settings(pipeline, name, key)
    if begins_again:
        table_id = pipeline.store.tables.table(name).table_id
        pipeline.store.stale_tables.begin_again(
            table_id, source_oid=source_oid, settings=settings, publication_mark=publication_mark
        )
    row = pipeline.store.tables.register_table(
        NewTable(
            name=name,
            stream=pipeline.settings.name,
            source_oid=source_oid,
            settings=settings,
            table_uuid=pipeline.new_id(),
            publication_mark=publication_mark,
        )
    )
    documents = [shape.to_json() for shape in shapes]
    if documents and row.shape != documents:
        row = pipeline.store.tables.set_shapes(row.table_id, documents)
    if schema is not None and (begins_again or row.schema_id is None):
        first_offset = pipeline.store.streams.next_offset(pipeline.settings.name) or encode_position(0)
        pipeline.store.tables.record_schema(row.table_id, schema, first_offset=first_offset)
    return row


def _settings(pipeline: Pipeline, name: TableName, key: Sequence[str]) -> dict[str, Any]:
    return pipeline.settings.table(name).model_dump(mode="json", exclude={"name"}) | {"id": list(key)}


def table_ids(pipeline: Pipeline) -> dict[TableName, int]:
    """Of the tables of pipeline.yml that are registered."""
    listed = {table.table for table in pipeline.settings.tables}
    rows = pipeline.store.tables.tables()
    return {row.name: row.table_id for row in rows if row.stream == pipeline.settings.name and row.name in listed}


def ignored_truncates(pipeline: Pipeline) -> frozenset[TableName]:
    return frozenset(table.table for table in pipeline.settings.tables if table.truncate == "ignore")
