"""What PostgreSQL, MariaDB and MySQL have in common as sources."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cdc_pipeline.errors import RegistryError
from cdc_pipeline.record import SNAPSHOT_ORDINAL, Column, TableName, decode_position, encode_version
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.known import KnownTable, PartitionProgress
from cdc_pipeline.sources.protocol import SourceCapabilities
from cdc_pipeline.sources.quarantined import DecodedEvents, QuarantinedText, decode_texts
from cdc_pipeline.steps import OnStep


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSource:
    """The part of `Source` that asks no server. `stream`: the pipeline's name. `tables`: those of pipeline.yml."""

    stream: str
    tables: tuple[TableSettings, ...]
    on_step: OnStep

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(copies_tables=True)

    def oldest_version_to_come(self, table: TableName, progress: Mapping[int, PartitionProgress]) -> str:
        del table
        offset = min((reached.offset for reached in progress.values()), default=None)
        return "" if offset is None else encode_version(decode_position(offset), SNAPSHOT_ORDINAL)

    def decode_quarantined(
        self,
        table: KnownTable,
        events: Sequence[QuarantinedText],
        *,
        columns: Sequence[Column],
        stream_partitions: Collection[int],
    ) -> Sequence[DecodedEvents]:
        del stream_partitions
        if table.schema is None:
            raise RegistryError(f"{table.name} has no schema yet", remedy="run cdc setup-source")
        return decode_texts(events, table.schema, columns)
