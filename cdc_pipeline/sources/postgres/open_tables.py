"""Checks that the tables of an open stream are still the same as when it was opened."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cdc_pipeline.errors import StreamMoved
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.known import Document
from cdc_pipeline.sources.postgres.planned_table import PlannedTable
from cdc_pipeline.sources.postgres.publication import Publication
from cdc_pipeline.sources.postgres.shape import SourceShape
from cdc_pipeline.sources.postgres.shape_changes import Unchanged, compare_again
from cdc_pipeline.sources.postgres.table_parts import TablePart, parts_that_hide


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTables:
    """The tables of a stream as they were when it was opened.

    `marks`: how each table was published. `newest`: the last shape of each table that was seen since, by oid.
    """

    tables: Sequence[PlannedTable]
    marks: Mapping[TableName, str]
    newest: dict[int, SourceShape] = field(default_factory=dict)

    def check(
        self,
        publication: Publication | None,
        shapes: Mapping[int, SourceShape],
        parts: Mapping[int, Sequence[TablePart]],
        registered: Mapping[TableName, str | None],
    ) -> dict[TableName, list[Document]]:
        """Raises StreamMoved unless tables, publication and registration are as they were when the stream was opened.

        Returns the new shapes of tables with differences that have no effect, such as the number of a rewritten file.
        """
        published = {} if publication is None else {name: publication.of(name) for name in self.marks}
        now = {name: found.mark for name, found in published.items() if found is not None}
        wanted = dict.fromkeys(registered) | dict(self.marks)
        moved = {name for name in wanted if not (now.get(name) == wanted[name] == registered.get(name))}
        changed: dict[TableName, list[Document]] = {}
        for table in self.tables:
            before = self.newest.get(table.oid, table.shapes[-1])
            after = _unchanged(before, shapes.get(table.oid))
            found = parts.get(table.oid, ())
            same_key = bool(found) and tuple(found[0].primary_key) == table.primary_key
            unfit = any(part.not_in_log or part.may_repeat(table.key) for part in found)
            if after is None or not same_key or unfit or parts_that_hide(found, table.key, is_new=False):
                moved.add(table.name)
            elif after is not before:
                self.newest[table.oid] = after
                changed[table.name] = [shape.to_json() for shape in (*table.shapes[:-1], after)]
        if moved:
            raise StreamMoved(
                f"the source has or publishes {', '.join(sorted(map(str, moved)))} otherwise than when its stream was"
                " opened",
                remedy="open the consumer again: what changed is found then",
            )
        return changed


def _unchanged(before: SourceShape, now: SourceShape | None) -> SourceShape | None:
    """Returns the present shape of a table whose rows are read as before, None for a table that changed.

    Returns `before` itself if nothing differs.
    """
    if now is None:
        return None
    if now.is_now(before):
        return before
    if [column.look for column in now.columns] != [column.look for column in before.columns]:
        return None
    if now.leaves != before.leaves and any(column.generated is not None for column in now.columns):
        return None  # a new partition may compute them otherwise; only an opening reads its expressions, under a lock
    change = compare_again(before, now)
    return change.shape if isinstance(change, Unchanged) else None
