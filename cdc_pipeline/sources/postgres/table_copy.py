"""Copies the tables of a PostgreSQL database as an exported snapshot shows them."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import psycopg2.extensions

from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.sources.copied_rows import CopiedRows
from cdc_pipeline.sources.known import Document, FoundTable, KnownTable
from cdc_pipeline.sources.postgres.columns import oid_now, read_columns, refuse_changed, refuse_renamed
from cdc_pipeline.sources.postgres.copy_stream import copy_record_batches
from cdc_pipeline.sources.postgres.page_ranges import PageRange, plan_ranges, range_query
from cdc_pipeline.sources.postgres.shape import ShapeColumn, SourceShape
from cdc_pipeline.sources.postgres.shape_changes import why_copy_differs
from cdc_pipeline.sources.postgres.shape_reading import read_shapes
from cdc_pipeline.steps import OnStep, step


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresCopy:
    """Implements `TableCopy` over one read-only connection that sees the database as of the position."""

    connection: psycopg2.extensions.connection
    on_step: OnStep

    def columns(self, table: KnownTable) -> tuple[Column, ...]:
        """Includes generated columns."""
        with step(self.on_step, "source.check"):
            return read_columns(self.connection, table.name)

    def description(self, table: KnownTable) -> FoundTable | None:
        shape = _shape_at(self.connection, table)
        if shape is None:
            return None
        return FoundTable(
            name=table.name,
            source_id=shape.oid,
            key=table.key,
            schema=shape.schema(table.key),
            description=(shape.to_json(),),
        )

    def parts(self, table: TableName, file_bytes: int) -> Sequence[Document]:
        """Returns ranges of pages; for a partitioned table, those of all its leaves."""
        return [asdict(pages) for pages in plan_ranges(self.connection, table, file_bytes)]

    def rows(self, table: TableName, schema: TableSchema, part: Document | None = None) -> Iterator[CopiedRows]:
        """Reads each partition by its own name: no right to read the partitioned table and no policy of it counts."""
        ranges = plan_ranges(self.connection, table, sys.maxsize) if part is None else [PageRange(**part)]
        if part is None:
            refuse_changed(self.connection, table)
            for pages in ranges:
                refuse_renamed(self.connection, pages, schema.names)
        for pages in ranges:
            query = range_query(self.connection, pages, schema)
            yield from copy_record_batches(self.connection, query, schema, on_step=self.on_step)


def _shape_at(connection: psycopg2.extensions.connection, table: KnownTable) -> SourceShape | None:
    """Returns the shape that the connection's snapshot shows.

    Returns None for a table without registered shapes. Raises SnapshotError if its columns are those of none of them.
    """
    known = [SourceShape.from_json(document) for document in table.description]
    if not known:
        return None
    now = read_shapes(connection, [table.source_id]).get(table.source_id)
    for shape in reversed(known):
        if now is not None and _columns(shape) == _columns(now):
            found = replace(shape, file_number=now.file_number, leaves=now.leaves, columns=_as_of(shape, now))
            return replace(found, large_values=now.large_values)
    raise SnapshotError(
        f"{table.name} changed its columns right before the cutoff",
        expected="the columns that its stream was opened with",
        remedy="run cdc snapshot again: it finds what changed",
    )


def _columns(shape: SourceShape) -> list[tuple[int, tuple[str, int, int], str | None]]:
    return [(column.number, column.look, column.generated) for column in shape.columns]


def _as_of(shape: SourceShape, now: SourceShape) -> tuple[ShapeColumn, ...]:
    written = {column.number: column.changed_by for column in now.columns}
    return tuple(replace(column, changed_by=written[column.number]) for column in shape.columns)


def refuse_rewritten(connection: psycopg2.extensions.connection, table: FoundTable, *, needs_file: bool) -> None:
    """Raises SnapshotError if the table was rewritten, or it or a column got another name, after it was described.

    An older snapshot sees a table that ALTER TABLE rewrote as empty. `needs_file`: as in `why_copy_differs`.
    """
    before = SourceShape.from_json(table.description[-1])
    now = read_shapes(connection, [before.oid]).get(before.oid)
    reason = "it was dropped" if now is None else why_copy_differs(before, now, needs_file=needs_file)
    if reason is None and oid_now(connection, table.name) != before.oid:
        reason = "it has another name now"
    if reason is not None:
        raise SnapshotError(
            f"{table.name} changed while it was exported: {reason}",
            expected="a table whose rows the cutoff still shows",
            remedy="run cdc snapshot again",
        )
