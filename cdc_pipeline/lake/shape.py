"""Maps the source's columns to the columns of a lake table; pure.

Columns are matched by the source's column number if both sides have one, otherwise by name.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from cdc_pipeline.record import OWN_PREFIX, Column, TableSchema
from cdc_pipeline.types import parse_text, resolve

COLUMNS, HIGHEST, GENERATION, SOURCE = "cdc.columns", "cdc.highest_column", "cdc.generation", "cdc.source_table"
"""Properties of the Delta table. COLUMNS is a JSON object: column name -> what Delta's own schema cannot express."""
DROPPED_PREFIX = f"{OWN_PREFIX}dropped_"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeColumn:
    """One column of a lake table that holds a column of the source.

    `type` is Spark's DDL text. `number` and `missing` are as in `record.Column`; `missing` has the source's type with
    it. `dropped`: the source has dropped the column; the lake keeps its values.
    """

    name: str
    type: str
    number: int | None = None
    missing: tuple[str, str] | None = None
    dropped: bool = False

    @property
    def missing_type(self) -> str:
        """The Spark type of `missing`. The column itself may have been widened since."""
        return self.type if self.missing is None else resolve(self.missing[1]).spark

    @property
    def missing_value(self) -> Any:
        """The value that rows written before the column was added have.

        None also if the lake's type cannot hold the value.
        """
        if self.missing is None:
            return None
        text, type_name = self.missing
        return parse_text(pa.array([text]), resolve(type_name)).values[0].as_py()


class ColumnPlaces:
    """Where in a table the columns are that hold those of the source. A search costs the same in a wide table."""

    def __init__(self, columns: Iterable[LakeColumn] = ()) -> None:
        self._numbered = dict[int, int]()
        self._named = dict[str, list[tuple[int, bool]]]()
        for place, own in enumerate(columns):
            self.add(place, own)

    def add(self, place: int, own: LakeColumn) -> None:
        if own.number is not None:
            self._numbered.setdefault(own.number, place)
        if not own.dropped:
            self._named.setdefault(own.name, []).append((place, own.number is not None))

    def find(self, column: Column) -> int | None:
        """Returns the place of the table's column that holds a column of the source, or None."""
        if column.number in self._numbered:
            return self._numbered[column.number]
        named = self._named.get(column.name, ())
        return next((place for place, is_numbered in named if column.number is None or not is_numbered), None)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The source's columns in a lake table. `highest`: the greatest number that any column ever had.

    `generation`: that of the last schema that the table followed. An older schema never changes the table back.
    `source_id`: the source table whose column numbers these are; 0 where that is not recorded.
    """

    columns: tuple[LakeColumn, ...]
    highest: int = 0
    generation: int = 0
    source_id: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def types(self) -> tuple[tuple[str, str], ...]:
        """Name and Spark type of each column."""
        return tuple((column.name, column.type) for column in self.columns)

    @property
    def shown(self) -> tuple[str, ...]:
        """Names of the columns that the source still has."""
        return tuple(column.name for column in self.columns if not column.dropped)

    def find(self, column: Column) -> LakeColumn | None:
        """Returns the table's column that holds a column of the source, or None."""
        place = self._places.find(column)
        return None if place is None else self.columns[place]

    @cached_property
    def _places(self) -> ColumnPlaces:
        return ColumnPlaces(self.columns)

    def lake_names(self, schema: TableSchema) -> dict[str, str]:
        """Returns column of the schema -> column of the table, without columns that the table no longer has."""
        found = {column.name: self.find(column) for column in schema.columns}
        return {name: own.name for name, own in found.items() if own is not None}

    def properties(self) -> dict[str, str]:
        """Returns the properties that record the shape in the Delta table. Empty if the columns have no numbers."""
        if not self.highest:
            return {}
        known = {column.name: _kept(column) for column in self.columns if column.number is not None or column.dropped}
        properties = {COLUMNS: json.dumps(known, ensure_ascii=False), HIGHEST: str(self.highest)}
        properties[GENERATION] = str(self.generation)  # also 0: a table registered anew begins there again
        return properties | ({SOURCE: str(self.source_id)} if self.source_id else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeChange:
    """How the columns of a lake table change.

    `sources`: column of `after` -> the column of `before` whose values it takes; None for a new column. `problems`: why
    the table cannot follow the source. If there are any, the table is not changed.
    """

    before: Shape
    after: Shape
    sources: Mapping[str, str | None]
    problems: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        return self.is_generation_alone and (self.before.generation == self.after.generation or not self.after.highest)

    @property
    def is_generation_alone(self) -> bool:
        """Whether nothing changes but, perhaps, the generation, which is recorded only beside numbers of columns."""
        before, after = self.before, self.after
        numbers = [(shape.source_id, shape.highest) for shape in (before, after)]
        return numbers[0] == numbers[1] and set(before.columns) == set(after.columns)

    @property
    def renamed(self) -> dict[str, str]:
        """Old name -> new name, of the columns whose name changes."""
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
        """New name -> old type, of the columns whose type changes."""
        before = {column.name: column.type for column in self.before.columns}
        held = {column.name: (self.sources[column.name], column.type) for column in self.after.columns}
        return {name: before[was] for name, (was, type_) in held.items() if was is not None and before[was] != type_}

    @property
    def rewrites(self) -> bool:
        """Whether existing rows change, so that they must be written again. Otherwise the table keeps its files."""
        filled = any(column.missing is not None for column in self.added)
        return bool(self.renamed or self.removed or self.widened or filled)

    def words(self) -> dict[str, object]:
        """Returns a description of the change, for the table's log."""
        dropped = [column.name for column in self.after.columns if column.dropped and self._is_news(column)]
        words = {
            "added": [column.name for column in self.added],
            "renamed": self.renamed,
            "widened": {column.name: column.type for column in self.after.columns if column.name in self.widened},
            "dropped": [*dropped, *self.removed],
        }
        return {what: names for what, names in words.items() if names}

    def _is_news(self, column: LakeColumn) -> bool:
        return all(was.name != self.sources[column.name] or not was.dropped for was in self.before.columns)


def shape_of(
    fields: Iterable[tuple[str, str]], properties: Mapping[str, str], partitions: Collection[str] = ()
) -> Shape:
    """Returns the shape of an existing table.

    `fields`: name and Spark type of all columns, the pipeline's own included. `properties`: those of the Delta table.
    `partitions`: its data partition columns, which the pipeline makes. One may begin like a dropped column's name.
    """
    known = json.loads(properties.get(COLUMNS, "{}"))
    columns = tuple(
        _known(name, type_, known.get(name, {}))
        for name, type_ in fields
        if not name.startswith(OWN_PREFIX) or (name.startswith(DROPPED_PREFIX) and name not in partitions)
    )
    highest, generation, source_id = (int(properties.get(name, 0)) for name in (HIGHEST, GENERATION, SOURCE))
    return Shape(columns=columns, highest=highest, generation=generation, source_id=source_id)


def shape_of_source(schema: TableSchema) -> Shape:
    """Returns the shape of a table that has exactly the source's columns."""
    columns = tuple(map(new_column, schema.columns))
    return Shape(columns=columns, highest=_highest(schema.columns), generation=schema.generation)


def new_column(column: Column) -> LakeColumn:
    missing = None if column.missing is None else (column.missing, column.type)
    return LakeColumn(name=column.name, type=resolve(column.type).spark, number=column.number, missing=missing)


def _known(name: str, type_: str, recorded: Mapping[str, Any]) -> LakeColumn:
    missing = tuple(recorded["missing"]) if "missing" in recorded else None
    return LakeColumn(
        name=name, type=type_, number=recorded.get("number"), missing=missing, dropped=recorded.get("dropped", False)
    )


def _highest(columns: Iterable[Column]) -> int:
    return max((column.number or 0 for column in columns), default=0)


def _kept(column: LakeColumn) -> dict[str, object]:
    recorded = {"number": column.number, "missing": column.missing, "dropped": column.dropped or None}
    return {name: value for name, value in recorded.items() if value is not None}
