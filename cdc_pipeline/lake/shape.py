"""Which column of the source each column of a lake table holds; pure.

Columns are known by the source's numbers where both sides have them, by their names otherwise.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from cdc_pipeline.record import OWN_PREFIX, Column, TableSchema
from cdc_pipeline.types import parse_text, resolve

COLUMNS, HIGHEST, GENERATION = "cdc.columns", "cdc.highest_column", "cdc.generation"
"""Properties of the Delta table: a JSON object that says of each column by name what is not in Delta's own schema."""
DROPPED_PREFIX = f"{OWN_PREFIX}dropped_"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeColumn:
    """`type` as Spark's DDL writes it; `number` as of `record.Column`, and `missing`, with the source's type of it.

    `dropped`: the source has it no more; its values stay, for whoever looks for them.
    """

    name: str
    type: str
    number: int | None = None
    missing: tuple[str, str] | None = None
    dropped: bool = False

    @property
    def missing_type(self) -> str:
        """As Spark's DDL writes it: the column may be wider by now."""
        return self.type if self.missing is None else resolve(self.missing[1]).spark

    @property
    def missing_value(self) -> Any:
        """What rows show that were written before the column was added; None also for a value that the lake lacks."""
        if self.missing is None:
            return None
        text, type_name = self.missing
        return parse_text(pa.array([text]), resolve(type_name)).values[0].as_py()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The source's columns of a lake table. `highest`: the greatest number that any of them ever had.

    `generation`: that of the schema which the table followed last; an older schema never changes the table back.
    """

    columns: tuple[LakeColumn, ...]
    highest: int = 0
    generation: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def shown(self) -> tuple[str, ...]:
        """Names of those that the source still has."""
        return tuple(column.name for column in self.columns if not column.dropped)

    def find(self, column: Column) -> LakeColumn | None:
        """Where the table keeps a column of the source."""
        numbered = (own for own in self.columns if own.number is not None and own.number == column.number)
        named = (
            own
            for own in self.columns
            if own.name == column.name and not own.dropped and None in (own.number, column.number)
        )
        return next(chain(numbered, named), None)

    def places(self, schema: TableSchema) -> dict[str, str]:
        """Column of the schema -> column of the table. A column that the table keeps no more is not in it."""
        found = {column.name: self.find(column) for column in schema.columns}
        return {name: own.name for name, own in found.items() if own is not None}

    def properties(self) -> dict[str, str]:
        """None where the table has no numbers: there is nothing to remember."""
        if not self.highest:
            return {}
        known = {column.name: _kept(column) for column in self.columns if column.number is not None or column.dropped}
        told = {COLUMNS: json.dumps(known, ensure_ascii=False), HIGHEST: str(self.highest)}
        return told | {GENERATION: str(self.generation)} if self.generation else told


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeChange:
    """`sources`: column of `after` -> the column of `before` that holds its values, None for a new one.

    `problems`: why the table cannot follow; it stays as it is then.
    """

    before: Shape
    after: Shape
    sources: Mapping[str, str | None]
    problems: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        return set(self.before.columns) == set(self.after.columns) and self.before.highest == self.after.highest

    @property
    def renamed(self) -> dict[str, str]:
        """Name before -> name after, where they differ."""
        return {was: name for name, was in self.sources.items() if was is not None and was != name}

    @property
    def removed(self) -> tuple[str, ...]:
        kept = set(self.sources.values())
        return tuple(name for name in self.before.names if name not in kept)

    @property
    def added(self) -> tuple[LakeColumn, ...]:
        return tuple(column for column in self.after.columns if self.sources[column.name] is None)

    @property
    def widened(self) -> dict[str, str]:
        """Name after -> type before."""
        before = {column.name: column.type for column in self.before.columns}
        held = {column.name: (self.sources[column.name], column.type) for column in self.after.columns}
        return {name: before[was] for name, (was, type_) in held.items() if was is not None and before[was] != type_}

    @property
    def rewrites(self) -> bool:
        """Whether rows that the table has are to look otherwise. Without it, its files stay as they are."""
        filled = any(column.missing is not None for column in self.added)
        return bool(self.renamed or self.removed or self.widened or filled)

    def words(self) -> dict[str, object]:
        """What happened, for the table's log."""
        dropped = [column.name for column in self.after.columns if column.dropped and self._is_news(column)]
        told = {
            "added": [column.name for column in self.added],
            "renamed": self.renamed,
            "widened": {column.name: column.type for column in self.after.columns if column.name in self.widened},
            "dropped": [*dropped, *self.removed],
        }
        return {what: names for what, names in told.items() if names}

    def _is_news(self, column: LakeColumn) -> bool:
        return all(was.name != self.sources[column.name] or not was.dropped for was in self.before.columns)


def shape_of(fields: Iterable[tuple[str, str]], properties: Mapping[str, str]) -> Shape:
    """`fields`: name and Spark type of all columns of the table, ours too."""
    known = json.loads(properties.get(COLUMNS, "{}"))
    columns = tuple(
        _known(name, type_, known.get(name, {}))
        for name, type_ in fields
        if not name.startswith(OWN_PREFIX) or name.startswith(DROPPED_PREFIX)
    )
    numbers = {"highest": int(properties.get(HIGHEST, 0)), "generation": int(properties.get(GENERATION, 0))}
    return Shape(columns=columns, **numbers)


def shape_of_source(schema: TableSchema) -> Shape:
    """A table that holds just the source's columns."""
    columns = tuple(map(new_column, schema.columns))
    return Shape(columns=columns, highest=_highest(schema.columns), generation=schema.generation)


def new_column(column: Column) -> LakeColumn:
    missing = None if column.missing is None else (column.missing, column.type)
    return LakeColumn(name=column.name, type=resolve(column.type).spark, number=column.number, missing=missing)


def _known(name: str, type_: str, told: Mapping[str, Any]) -> LakeColumn:
    missing = tuple(told["missing"]) if "missing" in told else None
    return LakeColumn(
        name=name, type=type_, number=told.get("number"), missing=missing, dropped=told.get("dropped", False)
    )


def _highest(columns: Iterable[Column]) -> int:
    return max((column.number or 0 for column in columns), default=0)


def _kept(column: LakeColumn) -> dict[str, object]:
    told = {"number": column.number, "missing": column.missing, "dropped": column.dropped or None}
    return {name: value for name, value in told.items() if value is not None}
