"""Finds how the rows of a table are decoded in the stream, and which changes of the table can be followed."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from cdc_pipeline.errors import DecodeError, StreamMoved, TableStale
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.sources.mysql.row_image import RowDecoder, RowImage
from cdc_pipeline.sources.mysql.shape import TableShape
from cdc_pipeline.sources.mysql.statements import Effect
from cdc_pipeline.sources.mysql.table_map import LogColumn, image_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class BinlogLayout:
    """How rows are decoded whose columns the log describes in one way.

    `computed`: the columns that an update must have, since the server may leave them out although they changed.
    """

    schema: TableSchema
    decoder: RowDecoder
    computed: frozenset[str]


class BinlogTable:
    """One table of the stream, with the shapes that its next events may have, oldest first.

    `start`: everything of the table that commits before it is registered, or in its next snapshot. `looked_at`: the end
    of the log before the catalogue was read. `noted`: a text of `noted_changes`, "" for none. `shows_computed`: see
    `Dialect`; `makes_column_keys`: see `BinlogServer`. `excluded`: columns of which updates need no values.
    """

    def __init__(
        self,
        *,
        name: TableName,
        key: tuple[str, ...],
        shapes: Sequence[TableShape],
        start: int,
        looked_at: int,
        noted: str,
        shows_computed: bool,
        makes_column_keys: bool,
        excluded: Collection[str] = (),
    ) -> None:
        self.name = name
        self.key = key
        self._shapes = list(shapes)
        self._start = max(start, shapes[0].generation)
        self._looked_at = looked_at
        self._shows_computed = shows_computed
        self._excluded = frozenset(excluded)
        self._makes_column_keys = makes_column_keys
        self._layouts: dict[tuple[LogColumn, ...], BinlogLayout] = {}
        self._newest = shapes[-1].looked_at
        was_seen = json.loads(noted or "{}").get(str(name)) == self._newest
        self._changed_at = 0 if was_seen else None

    def is_read(self, commit_position: int) -> bool:
        """Returns False for events that are registered already, or that the table's next snapshot will contain."""
        return commit_position >= self._start

    def present(self, commit_position: int) -> TableSchema:
        """Returns the schema of a truncate, which carries no columns."""
        while len(self._shapes) > 1 and commit_position >= self._shapes[1].generation:
            self._follow()
        return self._shapes[0].schema(self.key)

    def rows(
        self, columns: tuple[LogColumn, ...], octets: bytes, bitmaps: Sequence[bytes]
    ) -> tuple[BinlogLayout, list[tuple[RowImage, ...]]]:
        """Returns the rows of an event with these columns, and how they are decoded.

        Raises what `layout` raises, and TableStale for bytes that are not rows of these columns.
        """
        try:
            layout = self.layout(columns)
            return layout, layout.decoder.images(octets, bitmaps)
        except DecodeError as error:
            raise self._stale(f"has rows in the log that cannot be read: {error.found}", error.expected) from error

    def layout(self, columns: tuple[LogColumn, ...]) -> BinlogLayout:
        """Returns how rows with these columns are decoded.

        Raises StreamMoved if the table may have changed since the catalogue was read, TableStale if it had these
        columns only between two reads of the catalogue.
        """
        found = self._layouts.get(columns)
        if found is not None:
            return found
        for _ in range(len(self._shapes)):
            image = image_columns(columns, self._shapes[0])
            if image is not None:
                layout = BinlogLayout(
                    schema=self._shapes[0].schema(self.key),
                    decoder=RowDecoder(image),
                    computed=frozenset() if self._shows_computed else self._shapes[0].computed - self._excluded,
                )
                self._layouts[columns] = layout
                return layout
            if len(self._shapes) == 1:
                break
            self._follow()
        raise self._unknown(columns)

    def take(self, effect: Effect, commit_position: int) -> None:
        """Notes a statement that changed the table itself.

        Raises StreamMoved if the catalogue has to be read again to know what it did, TableStale if the rows changed
        without events or if the catalogue cannot show what it did.
        """
        if effect is Effect.COLUMN_CASCADES:
            if not self._makes_column_keys:
                return
            effect = Effect.CASCADES
        if effect in _UNSEEN:
            raise self._stale(_UNSEEN[effect], "a table whose changes are all in the log as rows")
        if commit_position >= self._looked_at:
            raise StreamMoved(
                f"{self.name} was altered at position {commit_position}",
                remedy="open the consumer again: what changed is found then",
            )
        if self._changed_at is not None or commit_position >= self._newest:
            raise self._stale(
                "was altered in a way that its catalogue no longer shows", "one change between two looks at it"
            )
        self._changed_at = commit_position

    def noted(self, position: int) -> int | None:
        """Returns the look that found the newest shape if the one change that made it was read before the position.

        Returns None where no such change was read before the position, and at or behind the look itself.
        """
        is_seen = self._changed_at is not None and self._changed_at < position < self._newest
        return self._newest if is_seen else None

    def _follow(self) -> None:
        self._shapes.pop(0)
        self._layouts.clear()
        if len(self._shapes) == 1 and self._changed_at is None:
            self._changed_at = 0  # before the stream began

    def _unknown(self, columns: tuple[LogColumn, ...]) -> TableStale:
        shown = ", ".join(column.name or "?" for column in columns)
        expected = f"the columns ({', '.join(self._shapes[0].names)}) with the types of the catalogue"
        if not columns:
            return self._stale("has a column in the log whose type cannot be read", expected)
        if any(not column.name for column in columns):
            return self._stale(
                "has rows in the log without the names of their columns", "binlog_row_metadata = FULL since before them"
            )
        return self._stale(f"has rows in the log with the columns ({shown}) or types that it does not have", expected)

    def _stale(self, what: str, expected: str) -> TableStale:
        return TableStale(f"{self.name} {what}", table=self.name, expected=expected)


def noted_changes(tables: Iterable[BinlogTable], position: int) -> str:
    """Returns as a text which tables changed before the position in the way that the catalogue shows, "" for none.

    Who begins to read there takes no further change of them.
    """
    found = {str(table.name): noted for table in tables if (noted := table.noted(position)) is not None}
    return json.dumps(found, sort_keys=True) if found else ""


_UNSEEN = {
    Effect.ANOTHER: "was dropped, renamed or made again",
    Effect.REPLACED: "was altered: a column has a name that was another's, or rows or values went without events",
    Effect.CASCADES: "got a foreign key with CASCADE or SET NULL, by which its rows change without events",
    Effect.ROWS: "may have been changed by a statement that the log has as text, without its rows",
}
"""Effects that neither the log nor the catalogue shows whole."""
