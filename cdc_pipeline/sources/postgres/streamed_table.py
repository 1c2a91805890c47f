"""Finds the shape of a table's events in a PostgreSQL stream."""

from collections.abc import Set as AbstractSet

from cdc_pipeline.errors import TableStale
from cdc_pipeline.record import TableSchema
from cdc_pipeline.sources.pgoutput.messages import Relation
from cdc_pipeline.sources.postgres.planned_table import PlannedTable
from cdc_pipeline.sources.postgres.shape import SourceShape


class StreamedTable:
    """One table of the stream, with the shapes that its next events may have. Shapes follow each other in order.

    `start`: the commit position of the first events that are read.
    """

    def __init__(self, table: PlannedTable, start: int) -> None:
        self.name = table.name
        self.oid = table.oid
        self.key = table.key
        self.excluded = table.excluded
        self._shapes = list(table.shapes)
        self.start = max(start, table.shapes[0].generation)

    @property
    def shapes(self) -> tuple[SourceShape, ...]:
        """The shapes that the next events may have, oldest first."""
        return tuple(self._shapes)

    @property
    def newest(self) -> SourceShape:
        return self._shapes[-1]

    def has_columns(self, names: AbstractSet[str]) -> bool:
        """Returns whether events of the table or a partition may have columns of these names.

        These are all that are not generated, and any of the generated ones, as `SourceShape.shows` says.
        """
        return any(
            {column.name for column in shape.streamed} <= names <= {column.name for column in shape.columns}
            for shape in self._shapes
        )

    def present(self, commit_position: int) -> TableSchema:
        """Returns the schema of a truncate, which carries no columns.

        It is the schema of the event before, unless a newer shape holds at the commit position.
        """
        self._pass_until(commit_position)
        return self._shapes[0].schema(self.key)

    def is_read(self, commit_position: int) -> bool:
        """Returns False for events that are registered already, or that the table's next snapshot will contain."""
        return commit_position >= self.start

    def shape(self, relation: Relation, commit_position: int) -> SourceShape | None:
        """Returns the shape of an event with these columns, None if neither the present nor a later shape has them.

        A shape that ended before the commit position is not returned, even if its columns are the same. Of shapes that
        differ only in generated columns, which events may leave out, returns the last one that shows these columns.
        """
        self._pass_until(commit_position)
        shown = tuple((column.name, column.type_oid, column.modifier) for column in relation.columns)
        fitting = [number for number, shape in enumerate(self._shapes) if shape.shows(shown)]
        if not fitting:
            return None
        first = fitting[0]
        while first + 1 in fitting and self._shapes[first].looks_as(self._shapes[first + 1]):
            first += 1
        del self._shapes[:first]
        return self._shapes[0]

    def check_old_rows(self, partition: Relation) -> None:
        """Raises TableStale for a partition whose updates and deletes come without the id, now or a while ago.

        Its events are described as those of the table, whose own replica identity may have the id.
        """
        identity = {column.name for column in partition.columns if column.is_key}
        carries = partition.replica_identity == "f" or (self.key and identity.issuperset(self.key))
        if identity and not carries:
            where = f"{partition.namespace}.{partition.name}"
            raise TableStale(
                f"old rows of {where}, a partition of {self.name}, have only {', '.join(sorted(identity))}",
                table=str(self.name),
                expected=f"{', '.join(self.key)} in its replica identity" if self.key else "the whole old row",
                remedy=f"run ALTER TABLE {where} REPLICA IDENTITY FULL, then cdc snapshot {self.name}",
            )

    def _pass_until(self, commit_position: int) -> None:
        """Drops shapes that no event at the commit position or later has: a newer one holds there."""
        while len(self._shapes) > 1 and commit_position >= self._shapes[1].generation:
            self._shapes.pop(0)
