"""Registers the tables of pipeline.yml in the metadata store."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.ledger.tables import NewTable
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.operations.source_setup.lake_owner import own_lake_table
from cdc_pipeline.operations.source_setup.registered import RegisteredStream
from cdc_pipeline.record import TableName, encode_position
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.known import FoundTable
from cdc_pipeline.steps import OnStep


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRegistration:
    """Registers the tables of a stream."""

    registered: RegisteredStream
    table_settings: Callable[[TableName], TableSettings]
    store: MetadataStore
    objects: ObjectStore
    new_id: Callable[[], UUID]
    on_step: OnStep

    def register(self, found: FoundTable, *, begins_again: bool) -> None:
        """Registers a table, or the changes of a registered one. Durable on return, idempotent.

        `begins_again`: a new snapshot will follow, so what was registered of the table before is replaced. Raises
        SettingsError, before anything is registered, if the table is new and another pipeline owns it in the lake.
        """
        if self.store.tables.find(found.name) is None:
            name = self.registered.name
            since = self.store.streams.chain_position(name)
            own_lake_table(found.name, pipeline=name, since=since, objects=self.objects, on_step=self.on_step)
        if begins_again:
            self.store.stale_tables.begin_again(
                self.store.tables.table(found.name).table_id,
                source_oid=found.source_id,
                settings=self._settings(found.name, found.key),
                published_as=found.published_as,
            )
        self._record_description(found, self._register(found), begins_again=begins_again)

    def follow(self, found: FoundTable) -> None:
        """Records the changes of a registered table. Registers no new one. Durable on return.

        Raises RegistryError for a setting that can no longer be changed.
        """
        row = self.store.tables.table(found.name)
        if row.published_as is None or row.settings != self._settings(found.name, found.key):
            row = self._register(found)
        self._record_description(found, row, begins_again=False)

    def _register(self, found: FoundTable) -> SourceTable:
        return self.store.tables.register_table(
            NewTable(
                name=found.name,
                stream=self.registered.name,
                source_oid=found.source_id,
                settings=self._settings(found.name, found.key),
                table_uuid=self.new_id(),
                published_as=found.published_as,
            )
        )

    def _record_description(self, found: FoundTable, row: SourceTable, *, begins_again: bool) -> None:
        """Records the source's description of the table, and its schema if the table has none or begins again.

        Later schemas are registered with the table's slices.
        """
        description = list(found.description)
        if description and row.shape != description:
            row = self.store.tables.set_shapes(row.table_id, description, found.before)
        if found.schema is not None and (begins_again or row.schema_id is None):
            first_offset = self.registered.next_offset() or encode_position(0)
            schema = found.schema.without(row.excluded_columns)
            self.store.tables.record_schema(row.table_id, schema, first_offset=first_offset)

    def _settings(self, name: TableName, key: Sequence[str]) -> dict[str, Any]:
        return self.table_settings(name).model_dump(mode="json", exclude={"name"}) | {"id": list(key)}
