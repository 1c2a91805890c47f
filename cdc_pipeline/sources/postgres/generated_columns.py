"""Adds generated columns, which the stream leaves out: lets the source compute them from the event's other columns.

The expression of a generated column is immutable and reads only its own row, so it gives the same value for the values
of an event as for the row.
"""

import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import psycopg2.extensions
import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.errors import SourceAway, SourceBusy, SourceError, TableStale
from cdc_pipeline.record import OWN_PREFIX, TableName
from cdc_pipeline.sources.pgoutput.messages import RelationColumn
from cdc_pipeline.sources.pgoutput.rows import RowGroup
from cdc_pipeline.sources.pgoutput.tuples import Mask, TupleColumn
from cdc_pipeline.sources.postgres.catalogue import rows
from cdc_pipeline.sources.postgres.copy_stream import BYTE_ORDER_MARK, csv_columns
from cdc_pipeline.sources.postgres.publication import FIRST_VERSION_WITH_GENERATED
from cdc_pipeline.sources.postgres.session import answering
from cdc_pipeline.sources.postgres.shape import ShapeColumn, SourceShape
from cdc_pipeline.steps import OnStep, step

_UPDATE, _DELETE = b"ud"
_OLD_ROW = b"O"[0]
_CHUNK_BYTES = 4 << 20
_NUMBER = f"{OWN_PREFIX}row"
"""Column with the row's number in a statement. No column of a source has this name."""
_TYPES = """
SELECT format_type(type, modifier), coalesce(' COLLATE ' || nullif(sorts, 0)::regcollation, '')
FROM unnest(%s::oid[], %s::int[], %s::oid[]) AS t (type, modifier, sorts)
"""
_COMPUTE = "COPY (SELECT {} FROM (VALUES {}) AS r ({}) ORDER BY {}) TO STDOUT (FORMAT csv)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Input:
    """An input column of an expression, one entry per event.

    `unknown`: the event does not have its value. `unchanged`: its value did not change.
    """

    texts: pa.Array
    unknown: Mask
    unchanged: Mask


class GeneratedColumns:
    """Computes generated columns on the source, over one connection in autocommit mode."""

    def __init__(self, connection: psycopg2.extensions.connection, on_step: OnStep) -> None:
        self._connection = connection
        self._on_step = on_step
        self._types: dict[tuple[int, int, int], tuple[str, str]] = {}

    def added_to(
        self, group: RowGroup, shape: SourceShape, table: TableName, key: Sequence[str], excluded: Collection[str]
    ) -> RowGroup:
        """Returns the group with the generated columns of `shape` that its relation lacks, but for `excluded` ones.

        A value is absent if its inputs are unchanged and some of them are absent. Old rows get the columns only in a
        keyless table. Raises TableStale for a value that cannot be computed, SourceAway if the connection broke.
        """
        place = {column.name: index for index, column in enumerate(group.relation.columns)}
        lacking = [
            column
            for column in shape.columns
            if column.generated is not None and column.name not in place and column.name not in excluded
        ]
        if not lacking:
            return group
        used = {number for column in lacking for number in column.inputs}
        inputs = {column: place[column.name] for column in shape.columns if column.number in used}
        # Each partition's replica identity has the id, but not every column of the whole table's.
        whole = [name for name in place if shape.leaves is None or name in key]
        new = {column.number: _of_new(group, index, is_whole=column.name in whole) for column, index in inputs.items()}
        kept = {column: self._kept(group, column, new, table) for column in lacking}
        wanted = {column: (group.op != _DELETE) & ~absent for column, absent in kept.items()}
        texts = {number: found.texts for number, found in new.items()}
        computed = self._computed(shape, wanted, texts, table)
        added = tuple(_column(computed[column], kept[column]) for column in lacking)
        old = group.old
        if old is not None:
            texts = {column.number: _string(old[index].values) for column, index in inputs.items()}
            wanted = dict.fromkeys(lacking, (group.old_kind == _OLD_ROW) & (not key))
            computed = self._computed(shape, wanted, texts, table)
            old = (*old, *(TupleColumn(values=computed[column], absent=None) for column in lacking))
        columns = (
            RelationColumn(name=column.name, type_oid=column.type_oid, modifier=column.modifier, is_key=False)
            for column in lacking
        )
        relation = replace(group.relation, columns=(*group.relation.columns, *columns))
        return replace(group, relation=relation, new=(*group.new, *added), old=old)

    def _kept(self, group: RowGroup, column: ShapeColumn, inputs: Mapping[int, _Input], table: TableName) -> Mask:
        """Returns where the value is absent: an input is unknown, and no input changed.

        Raises TableStale if an input is unknown and another one changed.
        """
        unknown = np.zeros(len(group.op), dtype=np.bool_)
        unchanged = np.ones(len(group.op), dtype=np.bool_)
        for number in column.inputs:
            unknown |= inputs[number].unknown
            unchanged &= inputs[number].unchanged
        if (unknown & ~unchanged).any():
            way = f"run ALTER TABLE {table.sql} REPLICA IDENTITY FULL"
            if self._connection.server_version >= FIRST_VERSION_WITH_GENERATED:
                way = f"make {column.name} STORED and set publish_generated_columns = stored on the publication"
            raise TableStale(
                f"an update of {table} leaves out a large value that did not change, from which {column.name} is"
                " computed",
                table=str(table),
                expected="every input of a generated column in the event, or none",
                remedy=f"{way}, then cdc snapshot {table}",
            )
        kept: Mask = unknown & unchanged
        return kept

    def _computed(
        self, shape: SourceShape, wanted: Mapping[ShapeColumn, Mask], texts: Mapping[int, pa.Array], table: TableName
    ) -> dict[ShapeColumn, pa.Array]:
        """Computes one text per event for each column, NULL where `wanted` is false.

        Columns that are wanted for the same events share one statement.
        """
        alike: dict[bytes, list[ShapeColumn]] = {}
        for column, mask in wanted.items():
            alike.setdefault(mask.tobytes(), []).append(column)
        found: dict[ShapeColumn, pa.Array] = {}
        for columns in alike.values():
            mask = wanted[columns[0]]
            needed = {number for column in columns for number in column.inputs}
            inputs = {
                column: texts[column.number].filter(pa.array(mask))
                for column in shape.columns
                if column.number in needed
            }
            index = pa.array(np.cumsum(mask) - 1, mask=~mask)
            values = self._values(columns, inputs, int(mask.sum()), table)
            found.update({column: each.take(index) for column, each in zip(columns, values, strict=True)})
        return found

    def _values(
        self, columns: Sequence[ShapeColumn], inputs: Mapping[ShapeColumn, pa.Array], count: int, table: TableName
    ) -> list[pa.Array]:
        parts: list[list[pa.Array]] = [[pa.nulls(0, pa.string())] for _ in columns]
        for statement in self._statements(columns, inputs, count) if count else ():
            try:
                block = self._answer(statement)
            except (SourceAway, SourceBusy):
                raise
            except SourceError as error:
                names = ", ".join(column.name for column in columns)
                raise TableStale(
                    f"{names} of {table} cannot be computed from an event: {error.found}",
                    table=str(table),
                    expected="expressions that the pipeline's role may compute on the source",
                    remedy=f"correct what the source says, then run cdc snapshot {table}",
                ) from error
            for part, texts in zip(parts, csv_columns(block, len(columns)), strict=True):
                part.append(texts.view(pa.string()))
        return [pa.concat_arrays(part) for part in parts]

    def _answer(self, statement: bytes) -> bytes:
        answer = io.BytesIO(BYTE_ORDER_MARK)
        answer.seek(len(BYTE_ORDER_MARK))
        with step(self._on_step, "source.compute"), answering(), self._connection.cursor() as cursor:
            cursor.execute("BEGIN READ ONLY")
            try:
                cursor.copy_expert(statement, answer)
            finally:
                if not self._connection.closed:
                    cursor.execute("ROLLBACK")
        return answer.getvalue()

    def _statements(
        self, columns: Sequence[ShapeColumn], inputs: Mapping[ShapeColumn, pa.Array], count: int
    ) -> Iterator[bytes]:
        """Yields the statements that compute the columns, each of a few megabytes or of one larger row."""
        types = self._named_types([*columns, *inputs])
        expressions = ", ".join(f"CAST(({column.generated}) AS {types[column][0]})" for column in columns)
        names = ", ".join([_NUMBER, *(_identifier(column.name) for column in inputs)])
        sizes = sum((np.asarray(pc.binary_length(texts).fill_null(0)) for texts in inputs.values()), np.zeros(count))
        chunks = (np.cumsum(sizes) - sizes) // _CHUNK_BYTES
        starts = np.unique(chunks, return_index=True)[1]
        for start, end in zip(starts, [*starts[1:], count], strict=True):
            length = int(end - start)
            cells: list[pa.Array] = [pa.array(range(length)).cast(pa.string()).view(pa.binary())]
            for column, texts in inputs.items():
                cells.append(_literals(texts.slice(start, length), "".join(types[column])))
            joined = pc.binary_join_element_wise(*cells, pa.scalar(b", ", pa.binary()))
            values = b", ".join(b"(" + row + b")" for row in joined.to_pylist())
            head, tail = _COMPUTE.format(expressions, "\0", names, _NUMBER).split("\0")
            yield head.encode() + values + tail.encode()

    def _named_types(self, columns: Sequence[ShapeColumn]) -> dict[ShapeColumn, tuple[str, str]]:
        """Returns each column's type as SQL writes it, and the words that give a value its collation."""
        wanted = {column: (column.type_oid, column.modifier, column.collation) for column in columns}
        unknown = sorted(set(wanted.values()) - self._types.keys())
        if unknown:
            with answering():
                found = rows(self._connection, _TYPES, tuple(map(list, zip(*unknown, strict=True))))
            self._types.update({each: (name, collated) for each, (name, collated) in zip(unknown, found, strict=True)})
        return {column: self._types[each] for column, each in wanted.items()}


def _of_new(group: RowGroup, index: int, *, is_whole: bool) -> _Input:
    """Returns a column of the new rows, with the old row's value where the new row leaves it out.

    `is_whole`: each partition's replica identity has the column if that of the table has it.
    """
    column, is_key = group.new[index], group.relation.columns[index].is_key and is_whole
    texts = _string(column.values)
    unknown = np.zeros(len(group.op), dtype=np.bool_) if column.absent is None else column.absent
    unchanged = unknown | ((group.op == _UPDATE) & (group.old_kind == 0) & is_key)
    if column.absent is not None and group.old is not None:
        old = group.old[index].values
        # A value that is left out is not NULL. So NULL in the old row shows that the server did not send it there, too.
        found = unknown & np.asarray(old.is_valid())
        texts = pc.if_else(pa.array(found), _string(old), texts)
        unknown = unknown & ~found
    return _Input(texts=texts, unknown=unknown, unchanged=unchanged)


def _column(values: pa.Array, absent: Mask) -> TupleColumn:
    return TupleColumn(values=values, absent=absent if absent.any() else None)


def _literals(texts: pa.Array, type_name: str) -> pa.Array:
    """Returns SQL literals. The first one names type and collation; the others of a VALUES list take the same."""
    escaped = pc.replace_substring(texts.view(pa.binary()), pattern=b"\\", replacement=b"\\\\")
    escaped = pc.replace_substring(escaped, pattern=b"'", replacement=b"''")
    quote, end, nothing = (pa.scalar(part, pa.binary()) for part in (b"E'", b"'", b""))
    quoted = pc.binary_join_element_wise(quote, escaped, end, nothing)
    literals = quoted.fill_null(b"NULL")
    first = literals[0].as_py() + f"::{type_name}".encode()
    return pa.concat_arrays([pa.array([first], pa.binary()), literals.slice(1)])


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _string(texts: pa.Array) -> pa.Array:
    """Returns the texts unchecked: they go back to the server as they came, and are checked with the other columns."""
    return texts.cast(pa.binary()).view(pa.string())
