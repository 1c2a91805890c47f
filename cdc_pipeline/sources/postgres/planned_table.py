"""A table of a PostgreSQL source that can be read, as the source's set-up plans it."""

from dataclasses import dataclass

from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.sources.postgres.shape import SourceShape


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTable:
    """A table that passed every check. `key` is empty for a keyless table. `primary_key` may be another one.

    `shapes`: those that its events may have, oldest first. `schema` is the schema of the last one. `excluded`: columns
    that its events are read without.
    """

    name: TableName
    oid: int
    key: tuple[str, ...]
    primary_key: tuple[str, ...]
    shapes: tuple[SourceShape, ...]
    excluded: tuple[str, ...] = ()

    @property
    def schema(self) -> TableSchema:
        return self.shapes[-1].schema(self.key)
