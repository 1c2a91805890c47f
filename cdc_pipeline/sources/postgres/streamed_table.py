"""One table of a PostgreSQL stream, and the columns that its events have by now."""

from cdc_pipeline.record import TableSchema
from cdc_pipeline.sources.pgoutput.decoder import Relation
from cdc_pipeline.sources.postgres.setup import PlannedTable
from cdc_pipeline.sources.postgres.shape import SourceShape


class StreamedTable:
    """One table of the stream, and which of its shapes its events have by now. Shapes follow each other in order."""

    def __init__(self, table: PlannedTable, start: int) -> None:
        self.name = table.name
        self.oid = table.oid
        self.key = table.key
        self._shapes = list(table.shapes)
        self._pass_alike()
        self._start = max(start, table.shapes[0].generation)

    @property
    def shapes(self) -> tuple[SourceShape, ...]:
        """The shapes that its coming events may have."""
        return tuple(self._shapes)

    @property
    def partition_columns(self) -> list[set[str]]:
        """Names of the columns that its partitions may have; none without partitions."""
        parted = [shape for shape in self._shapes if shape.leaves is not None]
        return [{column.name for column in shape.streamed} for shape in parted]

    @property
    def newest(self) -> SourceShape:
        return self._shapes[-1]

    def present(self, commit_position: int) -> TableSchema:
        """The schema of a truncate, which carries no columns: that of the event before, while it may have it."""
        while len(self._shapes) > 1 and commit_position >= self._shapes[1].generation:
            self._shapes.pop(0)
        return self._shapes[0].schema(self.key)

    def is_read(self, commit_position: int) -> bool:
        """False for what is registered already, and for what a snapshot that is to come will hold."""
        return commit_position >= self._start

    def shape(self, relation: Relation) -> SourceShape | None:
        """The shape of an event with these columns; None if no shape from the present one on has them."""
        shown = tuple((column.name, column.type_oid, column.modifier) for column in relation.columns)
        while not self._shapes[0].shows(shown):
            if not any(shape.shows(shown) for shape in self._shapes):
                return None
            self._shapes.pop(0)
            self._pass_alike()
        return self._shapes[0]

    def _pass_alike(self) -> None:
        """Drops shapes whose events look like those of the next one: they differ in a generated column alone."""
        while len(self._shapes) > 1 and self._shapes[0].looks_as(self._shapes[1]):
            self._shapes.pop(0)
