"""Decides from two shapes of a table whether the change can be followed or needs a new snapshot. Pure.

A change is followed only if the two shapes prove a single change between them, without a row that changed without an
event. Every other change needs a new snapshot. If the catalogue does not show what happened, the worst case is assumed:
the expression of ALTER TYPE ... USING is not stored, so a rewritten column may have any values.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import pyarrow as pa

from cdc_pipeline.sources.postgres.shape import COMPOSITE, ShapeColumn, SourceShape
from cdc_pipeline.types import parse_text, resolve, text_of

_TEXTS = frozenset({"text", "varchar"})
_AS_TEXT = text_of("")[:-1]
"""How the type of a column that the lake keeps as the source's texts begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """Rows are read as before. `shape`: as the catalogue has it now."""

    shape: SourceShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The columns changed. The value of every row that is not in the stream is known for each new column."""

    shape: SourceShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Retaken:
    """The table needs a new snapshot."""

    reason: str


def compare_shapes(
    before: SourceShape, now: SourceShape, fixed: Collection[str] = ()
) -> Unchanged | Followed | Retaken:
    """Compares a shape with an earlier one, `before`. Both must have canonical type names.

    `fixed`: columns whose names the lake depends on, such as the id. A column that stays keeps its `missing`
    from `before`, since a rewrite of the table clears that field in the catalogue.
    """
    for reason in _reasons(before, now, fixed):
        return Retaken(reason=reason)
    known = {column.number: column for column in before.columns}
    columns = tuple(
        replace(column, missing=known[column.number].missing) if column.number in known else column
        for column in now.columns
    )
    shape = replace(now, columns=columns)
    if shape.schema(()).columns == before.schema(()).columns:
        return Unchanged(shape=replace(shape, generation=before.generation))
    return Followed(shape=shape)


def compare_again(before: SourceShape, now: SourceShape) -> Unchanged | Followed | Retaken:
    """Calls `compare_shapes` for a shape without type names; it takes those of `before`, by column number."""
    return compare_shapes(before, now.with_types({column.number: column.type for column in before.columns}))


def why_copy_differs(before: SourceShape, now: SourceShape, *, needs_file: bool) -> str | None:
    """Returns why a copy by an older snapshot may have other rows or values than that shows, None if it has not.

    `needs_file`: only the file of the description has the rows in their places. A query that names a column reads the
    one that has the name now.
    """
    change = compare_again(before, now)
    if isinstance(change, Retaken):
        return change.reason
    if needs_file and before.file_number != now.file_number:
        return "it has a new file, as after VACUUM FULL, CLUSTER or TRUNCATE"
    names = {column.number: column.name for column in now.columns}
    renamed = [column for column in before.columns if names.get(column.number, column.name) != column.name]
    return f"the column {renamed[0].name!r} is now called {names[renamed[0].number]!r}" if renamed else None


def _reasons(before: SourceShape, now: SourceShape, fixed: Collection[str]) -> list[str]:
    """Returns why the table needs a new snapshot; empty if it needs none."""
    known = {column.number: column for column in before.columns}
    pairs = [(known[column.number], column) for column in now.columns if column.number in known]
    return [
        *_of_partitions(before, now),
        *_of_labels(before, now),
        *_of_set(before, now),
        *_of_pairs(pairs, fixed),
        *_of_files(before, now, pairs),
        *_of_publication(before, now, pairs),
    ]


def _of_partitions(before: SourceShape, now: SourceShape) -> list[str]:
    if before.leaves is None and now.leaves == {}:
        return []  # as earlier builds described a partitioned table without partitions
    if before.leaves is None or now.leaves is None:
        return [] if before.leaves == now.leaves else ["the table became, or no longer is, a partitioned one"]
    gone = before.leaves.keys() - now.leaves.keys()
    new = now.leaves.keys() - before.leaves.keys()
    pairs = [(leaf, now.leaves[oid]) for oid, leaf in before.leaves.items() if oid in now.leaves]
    attached = [oid for oid in new if not now.leaves[oid][1]] or any(old[2] != leaf[2] for old, leaf in pairs)
    # The first file of a new table has the table's oid as its number.
    rewritten = [oid for oid in new if now.leaves[oid][0] != int(oid)] or any(old[0] != leaf[0] for old, leaf in pairs)
    found = []
    if gone:
        found.append("a partition was detached or dropped: the stream does not contain its rows")
    if attached:
        found.append("a partition was attached: the stream does not contain the rows that it had")
    if rewritten:
        found.append("a partition was truncated or rewritten: the stream does not say which")
    return found


def _of_labels(before: SourceShape, now: SourceShape) -> list[str]:
    found = []
    for oid, label in before.labels.items():
        new = now.labels.get(oid, label)
        (old_types, _, old_names), (new_types, _, new_names) = label.partition(" = "), new.partition(" = ")
        if not oid.startswith(COMPOSITE) and label != new:
            found.append(f"the enum value {label!r} is now called {new!r}")
        elif oid.startswith(COMPOSITE) and old_types != new_types:
            found.append(f"the composite type {old_names} is now {new_names}: its values in existing rows changed")
    return found


def _of_set(before: SourceShape, now: SourceShape) -> list[str]:
    """Returns reasons from columns that were added or dropped."""
    known, present = ({column.number for column in shape.columns} for shape in (before, now))
    added = [column for column in now.columns if column.number not in known]
    found = [
        f"the column {column.name!r} is generated: the stream does not contain its values in existing rows"
        for column in added
        if column.generated is not None
    ]
    found += [
        f"rows show {column.missing!r} for the new column {column.name!r}, which the lake's type cannot hold"
        for column in added
        if column.missing is not None and not _fits(column.missing, column.type)
    ]
    if set(range(before.last_number + 1, now.last_number + 1)) - present:
        found.append("a column was added and dropped again between two looks at the catalogue")
    if added and known - present:
        found.append(
            "columns were dropped and added between two looks at the catalogue, in an order that it does not show"
        )
    return found


def _of_pairs(pairs: list[tuple[ShapeColumn, ShapeColumn]], fixed: Collection[str]) -> list[str]:
    """Returns reasons from columns that are in both shapes."""
    found = []
    for old, new in pairs:
        if old.name != new.name and old.name in fixed:
            found.append(f"the column {old.name!r}, on which the lake depends, is now called {new.name!r}")
        if old.generated != new.generated:
            found.append(f"the column {new.name!r} is computed in another way")
        is_same = (old.type_oid, old.modifier) == (new.type_oid, new.modifier)
        if old.type != new.type and (is_same or not _keeps_values(old.type, new.type)):
            found.append(f"the column {new.name!r} was {old.type} and is {new.type}")
    return found


def _of_files(before: SourceShape, now: SourceShape, pairs: list[tuple[ShapeColumn, ShapeColumn]]) -> list[str]:
    """Returns reasons from a new file of the table.

    A new file alone is a TRUNCATE, VACUUM FULL or CLUSTER. Together with a changed column, any of its values may have
    changed.
    """
    if before.file_number == now.file_number:
        return []
    changed = [new.name for old, new in pairs if old.changed_by != new.changed_by]
    numbers = {column.number for column in before.columns}
    changed += [column.name for column in now.columns if column.number not in numbers]
    return [f"the table was rewritten together with its column {name!r}: any value may be another" for name in changed]


def _of_publication(before: SourceShape, now: SourceShape, pairs: list[tuple[ShapeColumn, ShapeColumn]]) -> list[str]:
    """Returns reasons why a table that no publication names may have changed without events for a while.

    ALTER TABLE gives a rewritten table another one for its large values; VACUUM FULL, CLUSTER and TRUNCATE do not.
    Attaching and detaching write each column's row of the catalogue again.
    """
    if now.is_named or now.leaves is not None:
        return []
    found = []
    has_other = before.large_values != now.large_values and 0 not in (before.large_values, now.large_values)
    if before.file_number != now.file_number and has_other:
        found.append("the table was rewritten by ALTER TABLE: it may have been unlogged, without events")
    writers = {new.changed_by for _, new in pairs}
    if len(pairs) > 1 and len(writers) == 1 and writers.isdisjoint(old.changed_by for old, _ in pairs):
        found.append("all its columns were written again: it may have been a partition of another table")
    return found


def _fits(text: str, type_name: str) -> bool:
    unfit = parse_text(pa.array([text]), resolve(type_name)).unfit
    return unfit is None or not unfit[0].as_py()


def _keeps_values(old: str, new: str) -> bool:
    """Returns whether the new type prints every value as the old one does, and the lake can widen the column to it."""
    before, after = resolve(old), resolve(new)
    as_text = [name.startswith(_AS_TEXT) for name in (old, new)]
    bases = {_base(name.removeprefix(_AS_TEXT)) for name in (old, new)}
    if len(set(as_text)) > 1 or (len(bases) > 1 and not bases <= _TEXTS):
        return False
    return before.spark == after.spark or _is_wider_decimal(before.arrow, after.arrow)


def _is_wider_decimal(before: pa.DataType, after: pa.DataType) -> bool:
    """Returns whether `after` has at least as many digits before the point and equally many after it.

    A value is printed with all digits after the point, so their number must stay the same.
    """
    if not isinstance(before, pa.Decimal128Type) or not isinstance(after, pa.Decimal128Type):
        return False
    return bool(before.scale == after.scale and before.precision <= after.precision)


def _base(type_name: str) -> str:
    return type_name.partition("(")[0].removesuffix(")")
