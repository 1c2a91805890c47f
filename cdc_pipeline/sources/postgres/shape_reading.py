"""Reads the present shapes of tables, as far as possible without a lock on them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import psycopg2.extensions

from cdc_pipeline.sources.postgres.shape import SourceShape, query_shapes


def read_shapes(
    connection: psycopg2.extensions.connection, oids: Sequence[int], known: Mapping[int, SourceShape] | None = None
) -> dict[int, SourceShape]:
    """Reads the shapes of tables, each by one statement, by oid. Leaves out tables that are gone.

    Expressions of `known` shapes that are the same are not asked for again, since the server locks a table to show one.
    """
    known = known or {}
    shapes = {
        oid: _with_expressions(shape, known.get(oid)) for oid, shape in query_shapes(connection, oids, ()).items()
    }
    unread = [oid for oid, shape in shapes.items() if shape is None]
    again = query_shapes(connection, unread, unread) if unread else {}
    return {oid: shape for oid, shape in (shapes | again).items() if shape is not None}


def _with_expressions(now: SourceShape, before: SourceShape | None) -> SourceShape | None:
    """Returns `now` with the texts of the same expressions of `before`. Returns None if one is not there."""
    wanted = _expressions(now)
    if not wanted:
        return now
    if before is None or not wanted.items() <= _expressions(before).items():
        return None
    texts = {column.number: column.generated for column in before.columns if column.number in wanted}
    return replace(now, columns=tuple(replace(each, generated=texts.get(each.number)) for each in now.columns))


def _expressions(shape: SourceShape) -> dict[int, tuple[str, tuple[str | None, ...]]]:
    """Returns what the text of each generated column's expression depends on: its row, and the names of its inputs."""
    names = {column.number: column.name for column in shape.columns}
    return {
        column.number: (column.expression, tuple(map(names.get, column.inputs)))
        for column in shape.columns
        if column.expression
    }
