"""Turns actions of a checkpoint from Arrow columns into dictionaries, as the log's JSON has them."""

from typing import Any

import pyarrow as pa

REPEATED = {"add": frozenset({"stats_parsed", "partitionValues_parsed"}), "remove": frozenset({"stats", "tags"})}
"""Fields that repeat others, or that no reader of the log needs."""


def needed_columns(checkpoint: pa.Schema, kinds: frozenset[str] | None = None) -> list[str]:
    """Returns the columns of a checkpoint to read, without fields that repeat others.

    `kinds`: the columns of these kinds of actions only.
    """
    columns = []
    for column in checkpoint:
        if kinds is not None and column.name not in kinds:
            continue
        if pa.types.is_struct(column.type):
            repeated = REPEATED.get(column.name, frozenset())
            columns += [f"{column.name}.{field.name}" for field in column.type if field.name not in repeated]
        else:
            columns.append(column.name)
    return columns


def plain_actions(column: pa.Array) -> list[dict[str, Any]]:
    """Returns the actions without the NULLs that a checkpoint has for fields that the JSON leaves out."""
    actions = [_without_nulls(row) for row in _values(column)]
    for action in actions:
        if "deletionVector" in action:
            action["deletionVector"] = _without_nulls(action["deletionVector"])
    return actions


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _values(rows: pa.Array) -> list[Any]:
    """Returns the same as `to_pylist` in a fifth of the time, because it works by column, not by row."""
    if not pa.types.is_struct(rows.type):
        return list(rows.to_pylist(maps_as_pydicts="strict"))
    names = [field.name for field in rows.type]
    columns = [_values(rows.field(number)) for number in range(len(names))]
    structs = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    if not rows.null_count:
        return structs
    return [struct if valid else None for struct, valid in zip(structs, rows.is_valid().to_pylist(), strict=True)]
