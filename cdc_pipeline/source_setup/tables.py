"""The tables of pipeline.yml in the metadata store."""

from collections.abc import Sequence
from typing import Any

from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.ledger.tables import NewTable
from cdc_pipeline.record import TableName, encode_position
from cdc_pipeline.source_setup.lake_owner import own_lake_table
from cdc_pipeline.sources.known import FoundTable
from cdc_pipeline.wiring import Pipeline


def register_table(pipeline: Pipeline, found: FoundTable, *, begins_again: bool) -> None:
    """Registers a table, or what changed of a registered one. Durable on return, idempotent.

    `begins_again`: for the snapshot that is to come it is this table, whatever it was before. Raises SettingsError,
    before anything is registered, for a new table that another pipeline has in the lake.
    """
    if pipeline.store.tables.find(found.name) is None:
        own_lake_table(pipeline, found.name)
    if begins_again:
        pipeline.store.stale_tables.begin_again(
            pipeline.store.tables.table(found.name).table_id,
            source_oid=found.source_id,
            settings=_settings(pipeline, found.name, found.key),
            publication_mark=found.published_as,
        )
    _record_description(pipeline, found, _register(pipeline, found), begins_again=begins_again)


def follow_table(pipeline: Pipeline, found: FoundTable) -> None:
    """Records what changed of a registered table; creates nothing. Durable on return.

    Raises RegistryError for a setting that cannot change any more.
    """
    row = pipeline.store.tables.table(found.name)
    if row.publication_mark is None or row.settings != _settings(pipeline, found.name, found.key):
        row = _register(pipeline, found)
    _record_description(pipeline, found, row, begins_again=False)


def _register(pipeline: Pipeline, found: FoundTable) -> SourceTable:
    return pipeline.store.tables.register_table(
        NewTable(
            name=found.name,
            stream=pipeline.settings.name,
            source_oid=found.source_id,
            settings=_settings(pipeline, found.name, found.key),
            table_uuid=pipeline.new_id(),
            publication_mark=found.published_as,
        )
    )


def _record_description(pipeline: Pipeline, found: FoundTable, row: SourceTable, *, begins_again: bool) -> None:
    """The schema of a registered table counts only if it has none yet: later ones come with its slices."""
    description = list(found.description)
    if description and row.shape != description:
        row = pipeline.store.tables.set_shapes(row.table_id, description)
    if found.schema is not None and (begins_again or row.schema_id is None):
        first_offset = pipeline.store.streams.next_offset(pipeline.settings.name) or encode_position(0)
        pipeline.store.tables.record_schema(row.table_id, found.schema, first_offset=first_offset)


def _settings(pipeline: Pipeline, name: TableName, key: Sequence[str]) -> dict[str, Any]:
    return pipeline.settings.table(name).model_dump(mode="json", exclude={"name"}) | {"id": list(key)}


def table_ids(pipeline: Pipeline) -> dict[TableName, int]:
    """Of the tables of pipeline.yml that are registered."""
    listed = {table.table for table in pipeline.settings.tables}
    rows = pipeline.store.tables.tables()
    return {row.name: row.table_id for row in rows if row.stream == pipeline.settings.name and row.name in listed}


def ignored_truncates(pipeline: Pipeline) -> frozenset[TableName]:
    return frozenset(table.table for table in pipeline.settings.tables if table.truncate == "ignore")
