"""Compares rows of the fast lake with rows of a source, as the lake on Spark does."""

from collections import Counter
from typing import Any

import pyarrow as pa

from cdc_pipeline.lake.differences import MOST_SHOWN, Comparison, Difference
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.record import OPERATION, Operation

Rows = list[dict[str, Any]]


def compared(table: LakeTable, source: Rows, lake: Rows) -> Comparison:
    """`lake`: the visible rows. NULL equals NULL and NaN equals NaN."""
    found = _copies(table, source, lake) if not table.schema.key else _differences(table, source, lake)
    return Comparison(
        source_rows=len(source), lake_rows=len(lake), differing_rows=len(found), differences=tuple(found[:MOST_SHOWN])
    )


def differing(table: LakeTable, source: Rows, lake: Rows, schema: pa.Schema, most: int) -> pa.Table:
    """Rows to repair the lake by, with the columns of `schema` and OPERATION."""
    in_source = {_content(row, table.schema.key): row for row in source}
    rows = []
    for difference in _differences(table, source, lake)[:most]:
        row = in_source.get(_content(difference.id, table.schema.key))
        operation = Operation.DELETE if row is None else Operation.UPDATE
        rows.append({**(difference.id if row is None else row), OPERATION: operation.value})
    return pa.Table.from_pylist(rows, schema=schema.append(pa.field(OPERATION, pa.string())))


def _content(row: dict[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """`repr` makes lists hashable, and NaN equal to NaN."""
    return tuple(repr(row[name]) for name in names)


def _differences(table: LakeTable, source: Rows, lake: Rows) -> list[Difference]:
    key = table.schema.key
    one, other = ({_content(row, key): row for row in rows} for rows in (source, lake))
    copies = Counter(_content(row, key) for row in lake)
    found = []
    for id_ in sorted(one.keys() | other.keys()):
        left, right = one.get(id_), other.get(id_)
        names = () if left is None or right is None else _differing_columns(table, left, right)
        is_doubled = copies[id_] > 1
        if names or is_doubled or left is None or right is None:
            kind = "extra" if left is None else "missing" if right is None else "doubled" if is_doubled else "different"
            row = left or right or {}
            found.append(
                Difference(id={name: row[name] for name in key}, kind=kind, columns=() if is_doubled else names)
            )
    return found


def _differing_columns(table: LakeTable, left: dict[str, Any], right: dict[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in table.schema.names if repr(left[name]) != repr(right[name]))


def _copies(table: LakeTable, source: Rows, lake: Rows) -> list[Difference]:
    names = table.schema.names
    by_content = {_content(row, names): {name: row[name] for name in names} for row in [*source, *lake]}
    one, other = (Counter(_content(row, names) for row in rows) for rows in (source, lake))
    missing = [Difference(id=by_content[row], kind="missing", columns=()) for row in (one - other).elements()]
    return missing + [Difference(id=by_content[row], kind="extra", columns=()) for row in (other - one).elements()]
