"""The columns of a table as the server's catalogue has them, and what a change of them means for the lake. Pure."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

import msgspec

from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.types import resolve
from cdc_pipeline.types.mysql import MysqlType, parse_column_type

_MOST_COLUMNS = 4096
"""Of a table."""
NO_DEFAULT = (None, "NULL")
"""What the catalogue shows for a column whose default is NULL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlColumn:
    """One column. `written`: its type as the catalogue writes it. `charset`: of a text, else None.

    `type`: its canonical type. `generated`: the expression that computes it, "" for a column that is written.
    `number`: given by `numbered`, since the server has none.
    """

    name: str
    written: str
    type: str
    charset: str | None = None
    nullable: bool = True
    default: str | None = None
    generated: str = ""
    number: int | None = None

    @property
    def mysql_type(self) -> MysqlType:
        return parse_column_type(self.written)

    def as_now_named(self) -> "MysqlColumn":
        """Returns the column with the character set that older servers call utf8 under its name in newer ones."""
        return replace(self, charset="utf8mb3") if self.charset == "utf8" else self

    @property
    def shows_null(self) -> bool:
        """Returns whether rows that are older than the column show NULL in it."""
        return self.nullable and self.default in NO_DEFAULT and not self.generated


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """One table as the catalogue had it at one time.

    `generation`: the end of the log when the shape was read; 0 for the first shape of a table. Every event that commits
    after it has this shape or a later one. `looked_at`: the same, also for a shape whose rows look like those of the
    one before, whose generation it has. `left_out`: names of computed columns that are not read, since the log does
    not have their values in updates. `highest`: the highest number that a column of the table ever had.
    """

    columns: tuple[MysqlColumn, ...]
    generation: int = 0
    looked_at: int = 0
    left_out: tuple[str, ...] = ()
    highest: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def numbers(self) -> dict[str, int | None]:
        return {column.name: column.number for column in self.columns}

    @property
    def computed(self) -> frozenset[str]:
        return frozenset(column.name for column in self.columns if column.generated)

    def column(self, name: str) -> MysqlColumn:
        return next(column for column in self.columns if column.name == name)

    def schema(self, key: Sequence[str]) -> TableSchema:
        columns = tuple(Column(name=column.name, type=column.type, number=column.number) for column in self.columns)
        return TableSchema(columns=columns, key=tuple(key), generation=self.generation)

    def is_now(self, other: "TableShape") -> bool:
        """Returns whether both have the same columns, whenever they were read."""
        return self.without_numbers().columns == other.without_numbers().columns and self.left_out == other.left_out

    def passes_for(self, other: "TableShape") -> bool:
        """Returns whether rows of this shape may be taken for rows of another one that has other columns."""
        shown = tuple(name for name in self.names if name not in other.left_out)
        return shown == other.names and self.numbers != other.numbers

    def without_numbers(self) -> "TableShape":
        return replace(self, columns=tuple(replace(column, number=None) for column in self.columns))

    def numbered(self, known: Mapping[str, int | None], highest: int) -> "TableShape":
        """Returns the shape with the `known` numbers of columns, by name. Another column gets a number of its own.

        That number is higher than `highest`, and than all that were given before this generation: so it is new also
        where a lost metadata store no longer knows a column that is gone.
        """
        given = max(highest, *(number or 0 for number in known.values()), 0)
        first = max(given + 1, self.generation * _MOST_COLUMNS) if known else 1
        new = iter(range(first, first + len(self.columns)))
        numbers = {name: known[name] if name in known else next(new) for name in self.names}
        columns = tuple(replace(column, number=numbers[column.name]) for column in self.columns)
        return replace(self, columns=columns, highest=max(given, *(number or 0 for number in numbers.values())))

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "TableShape":
        found = msgspec.convert({"looked_at": document["generation"], **document}, cls)
        return replace(found, columns=tuple(column.as_now_named() for column in found.columns))


def may_be_mixed_up(shapes: Sequence[TableShape]) -> bool:
    """Returns whether rows of one of the shapes, oldest first, may be taken for rows of an earlier one."""
    return any(later.passes_for(earlier) for earlier, later in combinations(shapes, 2))


def why_retaken(before: TableShape, now: TableShape, fixed: Collection[str] = ()) -> str | None:
    """Returns why a changed table needs a new snapshot, None for a change that its events show whole.

    A change is followed if columns were only dropped, or only added with NULL in every row, or if types became wider
    without another type in the lake. The server gives columns no numbers, so one that is gone and one that is new may
    be the same column under another name. `fixed`: columns on which the lake's files depend.
    """
    gone = [name for name in before.names if name not in now.names]
    new = [column for column in now.columns if column.name not in before.names]
    if gone and new:
        return (
            f"the column {gone[0]!r} is gone and {new[0].name!r} is new: the log does not show whether it was renamed"
        )
    needed = next((name for name in gone if name in fixed), None)
    if needed is not None:
        return f"the column {needed!r}, by which the lake's files are written, is gone"
    stored = next((column.name for column in new if column.name in before.left_out), None)
    if stored is not None:
        return f"the column {stored!r} is no longer computed, and its values in older rows have no event"
    filled = next((column for column in new if not column.shows_null), None)
    if filled is not None:
        return f"the new column {filled.name!r} has a value in rows that are older than it, which have no event"
    for column in now.columns:
        if column.name in before.names and (reason := _why_other(before.column(column.name), column)):
            return reason
    return None


def with_order_of(before: TableShape, now: TableShape) -> TableShape:
    """Returns `now` with the generation of `before` if rows are decoded as before, else `now` unchanged."""
    return replace(now, generation=before.generation) if _decoded(before) == _decoded(now) else now


def _decoded(shape: TableShape) -> list[tuple[Column, str]]:
    """Returns what decides how rows are decoded. The log has other bytes for a CHAR, a VARCHAR and a TEXT."""
    bases = [column.mysql_type.base for column in shape.columns]
    kinds = ["text" if base in _OCTETS else base for base in bases]
    return list(zip(shape.schema(()).columns, kinds, strict=True))


def _why_other(before: MysqlColumn, now: MysqlColumn) -> str | None:
    if before.generated != now.generated:
        return f"the column {now.name!r} is computed in another way"
    if before.charset != now.charset:
        return f"the column {now.name!r} was in the character set {before.charset} and is in {now.charset}"
    if before.nullable and not now.nullable:
        return f"the column {now.name!r} may no longer be NULL: the log does not show what its NULLs became"
    is_same = before.written == now.written and before.type == now.type
    if is_same or (resolve(before.type).spark == resolve(now.type).spark and _keeps(before.mysql_type, now.mysql_type)):
        return None
    return f"the column {now.name!r} was {before.written} and is {now.written}"


def _keeps(old: MysqlType, new: MysqlType) -> bool:
    """Returns whether every value of the old type is the same value of the new one."""
    if old.labels or new.labels:
        return old.base == new.base and new.labels[: len(old.labels)] == old.labels
    if old.base != new.base and old.base in _CHARACTERS and new.base in _CHARACTERS:
        return new.base != "char" and _most_characters(old) <= _sure_characters(new)
    if old.base != new.base or old.unsigned != new.unsigned:
        return False
    if old.base in _WIDTHLESS or old.arguments == new.arguments:
        return True
    return old.base in _LENGTHS and (new.length or 0) >= (old.length or 0)


def _most_characters(of: MysqlType) -> int:
    """Returns how many characters a text has at most, in a character set with one byte for each."""
    return _OCTETS.get(of.base) or of.length or 0


def _sure_characters(of: MysqlType) -> int:
    """Returns how many characters fit into a text, whatever its character set: one of UTF-8 has up to four bytes."""
    return _OCTETS[of.base] // 4 if of.base in _OCTETS else of.length or 0


_OCTETS = {"tinytext": (1 << 8) - 1, "text": (1 << 16) - 1, "mediumtext": (1 << 24) - 1, "longtext": (1 << 32) - 1}
"""Sizes of types that are limited in bytes. A CHAR and a VARCHAR are limited in characters."""
_CHARACTERS = frozenset({"char", "varchar", *_OCTETS})
"""Without JSON, whose texts are written anew. A CHAR loses spaces at the end."""
_LENGTHS = frozenset({"char", "varchar", "varbinary"})
_WIDTHLESS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year"})
"""Types whose number in parentheses is the width in which they are shown."""
