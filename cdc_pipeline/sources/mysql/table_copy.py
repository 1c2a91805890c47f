"""Copies the tables of a MariaDB or MySQL server as a held snapshot shows them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.sources.copied_rows import CopiedRows
from cdc_pipeline.sources.event_texts import copied_rows
from cdc_pipeline.sources.known import Document, FoundTable, KnownTable
from cdc_pipeline.sources.mysql.catalogue import MysqlCatalogueTable, read_definitions, read_size, read_tables
from cdc_pipeline.sources.mysql.held_snapshot import lock_definition, query_snapshot
from cdc_pipeline.sources.mysql.session import MysqlAddress, quoted, session
from cdc_pipeline.sources.mysql.setup import MARK
from cdc_pipeline.sources.mysql.shape import TableShape
from cdc_pipeline.steps import OnStep, step
from cdc_pipeline.types.mysql import is_floating, parseable_text

_MOST_PARTS = 10_000
_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlCopy:
    """Implements `TableCopy` over a held snapshot. `as_text`: columns that the lake keeps as texts, by table.

    The catalogue is not part of a snapshot: it is read as it is now. A table that was altered or truncated behind the
    snapshot is refused, and a read table cannot be altered before the snapshot ends.
    """

    exported: str
    address: MysqlAddress
    as_text: Mapping[TableName, Sequence[str]]
    on_step: OnStep
    kept: set[TableName] = field(default_factory=set, init=False)

    def columns(self, table: KnownTable) -> tuple[Column, ...]:
        found = self._found(table.name)
        if found is None:
            return ()
        self._keep(table.name)
        known = TableShape.from_json(table.description[-1]).numbers if table.description else {}
        columns = found.shape.schema(()).columns
        return tuple(replace(column, number=known.get(column.name)) for column in columns)

    def description(self, table: KnownTable) -> FoundTable | None:
        found = self._found(table.name)
        if found is None:
            raise SnapshotError(f"{table.name} was dropped", remedy="run cdc setup-source")
        self._keep(table.name)
        known = [TableShape.from_json(document) for document in table.description]
        shape = next((shape for shape in reversed(known) if shape.is_now(found.shape)), None)
        if shape is None:
            raise SnapshotError(
                f"{table.name} changed its columns right before the cutoff",
                expected="the columns that its stream was opened with",
                remedy="run cdc snapshot again: it finds what changed",
            )
        return FoundTable(
            name=table.name,
            source_id=0,
            key=table.key,
            schema=shape.schema(table.key),
            published_as=MARK,
            description=(shape.to_json(),),
        )

    def parts(self, table: TableName, file_bytes: int) -> Sequence[Document]:
        """Returns ranges of the first column of the primary key where that is a number, else the table as one part."""
        found = self._found(table)
        if found is None or not found.primary_key:
            return [{}]
        name = found.primary_key[0]
        if found.shape.column(name).mysql_type.base not in _INTEGERS:
            return [{}]
        with session(self.address) as connection:
            count = min(max(1, -(-read_size(connection, table) // file_bytes)), _MOST_PARTS)
        bounds = self._bounds(table, name)
        return [{}] if bounds is None else key_ranges(name, *bounds, count=count)

    def rows(self, table: TableName, schema: TableSchema, part: Document | None = None) -> Iterator[CopiedRows]:
        found = self._found(table)
        if found is None:
            raise SnapshotError(f"{table} was dropped", remedy="run cdc setup-source")
        gone = [name for name in schema.names if name not in found.shape.names]
        if gone:
            raise SnapshotError(
                f"{table} changed its columns before its rows were copied: it has no {', '.join(gone)}",
                expected="a table whose columns stay until its rows are copied",
                remedy="run cdc snapshot again: it finds what changed",
            )
        self._keep(table)
        query = rows_query(found, schema, part or {})
        texts_of = [parseable_text(found.shape.column(name).mysql_type) for name in schema.names]
        with step(self.on_step, "source.copy"):
            for batch in query_snapshot(self.exported, query):
                yield block_rows(batch, schema, texts_of)

    def _found(self, table: TableName) -> MysqlCatalogueTable | None:
        with step(self.on_step, "source.check"), session(self.address) as connection:
            return read_tables(connection, [table], self.as_text).get(table)

    def _keep(self, table: TableName) -> None:
        """Locks the definition of a table until the snapshot ends, when this copy first reads the table.

        Raises SourceError or SnapshotError if it was altered or truncated behind the snapshot. The server itself
        refuses only a table whose rows were written anew, which an instant ALTER does not do.
        """
        if table in self.kept:
            return
        before = lock_definition(self.exported, table)
        with step(self.on_step, "source.check"), session(self.address) as connection:
            now = read_definitions(connection, [table]).get(table)
        if now != before:
            raise SnapshotError(
                f"{table} seems altered since the position was taken",
                expected="a table that stays as it was at the position until it is read",
                remedy="run the same command again: it starts over at a new position",
            )
        self.kept.add(table)

    def _bounds(self, table: TableName, column: str) -> tuple[int, int] | None:
        name = quoted(column)
        query = f"SELECT min({name}), max({name}) FROM {quoted(table.schema, table.table)}"
        low, high = next(query_snapshot(self.exported, query)).to_pylist()[0].values()
        return None if low is None else (int(low), int(high))


def key_ranges(column: str, low: int, high: int, *, count: int) -> list[Document]:
    """Returns at most `count` ranges of equal width that hold every number, also beyond `low` and `high`."""
    width = max(1, -(-(high - low + 1) // count))
    starts = list(range(low, high + 1, width))
    ends = [*starts[1:], None]
    return [
        {"column": column, "first": None if start == low else start, "end": end}
        for start, end in zip(starts, ends, strict=True)
    ]


def rows_query(found: MysqlCatalogueTable, schema: TableSchema, part: Document) -> str:
    """Returns a SELECT of one part with the schema's columns, in order."""
    columns = ", ".join(_selected(found.shape, name) for name in schema.names)
    conditions = []
    if part.get("first") is not None:
        conditions.append(f"{quoted(part['column'])} >= {int(part['first'])}")
    if part.get("end") is not None:
        conditions.append(f"{quoted(part['column'])} < {int(part['end'])}")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {columns} FROM {quoted(found.name.schema, found.name.table)}{where}"


def _selected(shape: TableShape, name: str) -> str:
    """Multiplies numbers with a fraction by one: as a DOUBLE the server prints all digits, also of a FLOAT."""
    column = quoted(name)
    return f"{column} * 1e0" if is_floating(shape.column(name).mysql_type) else column


def block_rows(
    batch: pa.RecordBatch, schema: TableSchema, texts_of: Sequence[Callable[[bytes], bytes] | None]
) -> CopiedRows:
    """Parses one block. `texts_of`: by column, how the server's text becomes the text that `types` parses."""
    texts = {
        name: column if convert is None else _converted(column, convert)
        for name, column, convert in zip(schema.names, batch.columns, texts_of, strict=True)
    }
    return copied_rows(texts, schema)


def _converted(column: pa.Array, convert: Callable[[bytes], bytes]) -> pa.Array:
    return pa.array([None if value is None else convert(value) for value in column.to_pylist()], pa.binary())
