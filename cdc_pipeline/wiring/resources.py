"""The resources that one process has open, and the lake tables as settings and metadata store describe them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from cdc_pipeline.apply.table_work import TableWork
from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import SettingsError
from cdc_pipeline.lake.protocol import Lake, LakeTable
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import PartitionBy, Settings
from cdc_pipeline.settings.installation.endpoints import Endpoints
from cdc_pipeline.sources.protocol import Source
from cdc_pipeline.steps import OnStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources that one process has open. Threads may share them: each thread gets a `lake` of its own."""

    settings: Settings
    endpoints: Endpoints
    source: Source
    objects: ObjectStore
    store: MetadataStore
    open_lake: Callable[[], Lake]
    owner: str
    clock: Callable[[], datetime]
    new_id: Callable[[], UUID]
    on_step: OnStep

    @property
    def lake(self) -> Lake:
        return self.open_lake()

    @property
    def table_work(self) -> TableWork:
        return TableWork(
            owner=self.owner,
            lease_length=self.settings.worker.lease,
            store=self.store,
            objects=self.objects,
            lake=self.lake,
            lake_table=self.lake_table,
            on_step=self.on_step,
        )

    def lake_table(self, name: TableName) -> LakeTable:
        """Describes the lake's table by the metadata store and pipeline.yml as they are now.

        A changed `deletes` or `partition_by` has no effect until the table is registered with it.

        Raises UsageError for a table that is not registered, SettingsError for one without a schema, or that
        pipeline.yml does not list.
        """
        self.table_names((str(name),))
        row = self.store.tables.table(name)
        if row.schema_id is None:
            raise SettingsError(
                f"the columns of {name} are not known yet",
                expected="columns listed in pipeline.yml, or shown by the table's first event",
                remedy="list its columns in pipeline.yml and run cdc setup-source, or wait for its first event",
            )
        settings = self.settings.table(name)
        # What the lake's files depend on is what was registered: pipeline.yml may have changed since. A lake that was
        # begun before it recorded them leaves them unknown after a rebuild.
        fixed = settings.model_dump(mode="json") | row.settings
        return LakeTable(
            name=name,
            table_uuid=str(row.table_uuid),
            schema=self.store.tables.schema(row.table_id, row.schema_id),
            ordered=self.source.capabilities.orders_ids(
                self.store.streams.count_partitions(self.settings.name, most=2)
            ),
            partition_by=tuple(PartitionBy.model_validate(column) for column in fixed["partition_by"]),
            deletes=fixed["deletes"],
            create_time=settings.create_time,
            update_time=settings.update_time,
            keeps_dropped=settings.dropped_columns == "keep",
            deletion_vectors=settings.deletion_vectors,
            keeps_history=settings.history,
            source_id=row.source_oid,
        )

    def lake_url(self, name: TableName) -> str:
        """Returns the URL under which Spark finds the lake's table."""
        return self.objects.spark_url(lake_key(name))

    def table_names(self, chosen: tuple[str, ...] = ()) -> tuple[TableName, ...]:
        """Returns the `chosen` tables, each once, or all tables of pipeline.yml if none is chosen.

        Raises SettingsError for a chosen table that pipeline.yml does not list.
        """
        known = {table.name: table.table for table in self.settings.tables}
        for name in chosen:
            if name not in known:
                raise SettingsError(
                    f"pipeline.yml lists no table {name!r}",
                    expected=f"one of {', '.join(known)}",
                    remedy="add it there, or correct the name",
                )
        return tuple(known[name] for name in dict.fromkeys(chosen or known))
