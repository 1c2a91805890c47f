"""What fits a lake table to a source table that changed, and which slices one claim may take; pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from cdc_pipeline.lake.shape import DROPPED_PREFIX, Change, LakeColumn, Shape, new_column, shape_of_source
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.types import resolve

_WIDER = {"SMALLINT": ("INT", "BIGINT"), "INT": ("BIGINT",), "FLOAT": ("DOUBLE",), "DATE": ("TIMESTAMP_NTZ",)}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def fitted(
    before: Shape, leading: TableSchema | None, others: Sequence[TableSchema] = (), *, keeps_dropped: bool = True
) -> Change:
    """What makes the table hold rows of all these schemas.

    The `leading` one says how the table looks afterwards; the others only add columns that nobody knew before. One that
    names nothing but numbers up to the highest known lacks what was dropped, and gets no column for it.
    """
    plan = _Plan(before=before)
    for column in leading.columns if leading is not None else ():
        plan.follow(column)
    plan.leave(leading, keeps_dropped=keeps_dropped)
    for column in chain.from_iterable(schema.columns for schema in others):
        plan.make_room(column)
    for schema in filter(None, (leading, *others)):
        plan.check_key(schema)
    return plan.change()


@dataclass(slots=True, kw_only=True)
class _Plan:
    before: Shape
    after: list[LakeColumn] = field(default_factory=list)
    sources: dict[str, str | None] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    highest: int = 0

    def __post_init__(self) -> None:
        self.highest = self.before.highest

    def follow(self, column: Column) -> None:
        was, wanted = self.before.find(column), resolve(column.type).spark
        self.highest = max(self.highest, column.number or 0)
        if was is None:
            self._add(column)
            return
        if wider(was.type, wanted) != wanted:
            self.problems.append(f"{column.name!r} is {column.type} ({wanted}) and {was.type} in the lake")
        known = was if was.number is not None or column.number is None else new_column(column)
        self._keep(replace(known, name=column.name, type=wanted, dropped=False), was.name)

    def leave(self, leading: TableSchema | None, *, keeps_dropped: bool) -> None:
        """Columns that the leading schema lacks. Only numbers tell that the source dropped them."""
        taken = {column.name.lower() for column in self.after}
        tells = leading is not None and any(column.number is not None for column in leading.columns)
        for own in [own for own in self.before.columns if own.name not in self.sources.values()]:
            if not tells:
                self._keep(own, own.name)
            elif keeps_dropped:
                name = f"{DROPPED_PREFIX}{own.number or 0}_{own.name}" if own.name.lower() in taken else own.name
                self._keep(replace(own, name=name, dropped=True), own.name)

    def make_room(self, column: Column) -> None:
        found, wanted = self._shape().find(column), resolve(column.type).spark
        if found is None:
            if column.number is None or column.number > self.highest:
                self.highest = max(self.highest, column.number or 0)
                self._add(column)
            return
        both = wider(found.type, wanted) or wider(wanted, found.type)
        if both is None:
            self.problems.append(f"{column.name!r} is {column.type} ({wanted}) and {found.type} in the lake")
        else:
            self.after[self.after.index(found)] = replace(found, type=both)

    def check_key(self, schema: TableSchema) -> None:
        places = self._shape().places(schema)
        self.problems += [f"the id column {name!r} is gone" for name in schema.key if name not in places]

    def change(self) -> Change:
        after, names = self._shape(), [column.name for column in self.after]
        twice = {name for name in names if names.count(name) > 1}
        problems = [*self.problems, *(f"two columns are called {name!r}" for name in sorted(twice))]
        return Change(before=self.before, after=after, sources=self.sources, problems=tuple(dict.fromkeys(problems)))

    def _add(self, column: Column) -> None:
        new = new_column(column)
        if new.missing is not None and new.missing_value is None:
            self.problems.append(f"the default {column.missing!r} of {column.name!r} does not fit into {new.type}")
        self._keep(new, None)

    def _shape(self) -> Shape:
        return Shape(columns=tuple(self.after), highest=self.highest)

    def _keep(self, column: LakeColumn, was: str | None) -> None:
        self.after.append(column)
        self.sources[column.name] = was


def in_one_claim(schemas: Iterable[TableSchema | None]) -> int:
    """How many of the first slices one claim may take; None is a slice without rows, or one whose order says nothing.

    Rows that the lake has are rewritten once per claim, before it: so a change that asks for it begins another claim.
    """
    seen: list[TableSchema] = []
    count = 0
    for count, schema in enumerate(schemas):
        if schema is not None and schema not in seen:
            if any(begins_claim(earlier, schema) for earlier in seen):
                return count
            seen.append(schema)
    return count + 1


def begins_claim(before: TableSchema, after: TableSchema) -> bool:
    """Whether rows of the one schema cannot be merged together with rows of the other."""
    change = fitted(shape_of_source(before), after)
    key = tuple(change.sources.get(name) for name in after.key)
    return change.rewrites or bool(change.problems) or key != before.key


def wider(narrow: str, wide: str) -> str | None:
    """`wide` if it holds every value of `narrow` as the source itself would turn it; None otherwise."""
    if narrow == wide or wide in _WIDER.get(narrow, ()):
        return wide
    one, other = _DECIMAL.fullmatch(narrow), _DECIMAL.fullmatch(wide)
    if one is None or other is None:
        return None
    (digits, scale), (more_digits, more_scale) = map(int, one.groups()), map(int, other.groups())
    return wide if more_scale >= scale and more_digits - more_scale >= digits - scale else None
