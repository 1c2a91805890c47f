"""Plans how a lake table follows a changed source table, and which slices one claim may contain; pure."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from cdc_pipeline.lake.shape import (
    DROPPED_PREFIX,
    ColumnPlaces,
    LakeColumn,
    Shape,
    ShapeChange,
    new_column,
    shape_of_source,
)
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.types import resolve, wider


def fitted(
    before: Shape,
    leading: TableSchema | None,
    earlier: Sequence[TableSchema] = (),
    late: Sequence[TableSchema] = (),
    *,
    keeps_dropped: bool = True,
    keeps_wider: bool = False,
) -> ShapeChange:
    """Returns the change after which the table can hold rows of all these schemas.

    The `leading` schema decides how the table looks afterwards. A column that only `earlier` schemas have is already
    dropped. A column that only `late` schemas have is new if its number is higher than all known numbers; otherwise the
    source has dropped it, and it is not added. If its schema is older than the last one that the table followed, such
    a column has come and gone: it is already dropped. A `leading` schema that is older than the last one that the table
    followed does not lead: then all schemas are late. `keeps_wider`: a column whose type became narrower stays as wide
    as it is, as in a history, whose older rows may need it.
    """
    if leading is not None and leading.generation < before.generation:
        late = (leading, *earlier, *late)
        leading, earlier = None, ()
    plan = _Plan(before=before, generation=before.generation if leading is None else leading.generation)
    for column in leading.columns if leading is not None else ():
        plan.follow(column, keeps_wider=keeps_wider)
    plan.leave(leading, keeps_dropped=keeps_dropped)
    for column in chain.from_iterable(schema.columns for schema in earlier):
        plan.make_room(column, dropped=column.number is not None, wanted=column.number is None or keeps_dropped)
    for schema in late:
        is_older = schema.generation < plan.generation
        for column in schema.columns:
            is_new = (column.number or 0) > plan.highest and (keeps_dropped or not is_older)
            is_dropped = is_older and column.number is not None
            plan.make_room(column, dropped=is_dropped, wanted=column.number is None or is_new)
    for schema in filter(None, (leading, *earlier, *late)):
        plan.check_key(schema)
    return plan.change()


@dataclass(slots=True, kw_only=True)
class _Plan:
    """Builds a ShapeChange.

    `after`: each column with the `before` column whose values it takes, "" for a new column. `places`: their places.
    """

    before: Shape
    generation: int
    after: list[tuple[LakeColumn, str]] = field(default_factory=list)
    places: ColumnPlaces = field(default_factory=ColumnPlaces)
    problems: list[str] = field(default_factory=list)
    highest: int = 0

    def __post_init__(self) -> None:
        self.highest = self.before.highest

    def follow(self, column: Column, *, keeps_wider: bool) -> None:
        was, wanted = self.before.find(column), resolve(column.type).spark
        self.highest = max(self.highest, column.number or 0)
        if was is None:
            self._add(column)
            return
        if keeps_wider and wider(wanted, was.type):
            wanted = was.type
        if wider(was.type, wanted) is None:
            self._refuse(column, was)
        known = was if was.number is not None or column.number is None else new_column(column)
        self._put(replace(known, name=column.name, type=wanted, dropped=False), was.name)

    def leave(self, leading: TableSchema | None, *, keeps_dropped: bool) -> None:
        """Keeps or removes the columns that the leading schema lacks.

        Only column numbers show that the source dropped a column.
        """
        has_numbers = leading is not None and any(column.number is not None for column in leading.columns)
        held = {was for _, was in self.after}
        for own in [own for own in self.before.columns if own.name not in held]:
            if keeps_dropped or not has_numbers:
                self._put(replace(own, dropped=own.dropped or has_numbers), own.name)

    def make_room(self, column: Column, *, dropped: bool, wanted: bool) -> None:
        """Makes the table able to hold a column of an earlier or late schema.

        Only a `wanted` column is added to the table.
        """
        place, type_ = self.places.find(column), resolve(column.type).spark
        if place is None:
            if wanted:
                self.highest = max(self.highest, column.number or 0)
                self._add(column, dropped=dropped)
            return
        found, was = self.after[place]
        both = wider(found.type, type_) or wider(type_, found.type)
        if both is None:
            self._refuse(column, found)
        else:
            self.after[place] = (replace(found, type=both), was)

    def check_key(self, schema: TableSchema) -> None:
        lake_names = self._shape().lake_names(schema)
        self.problems += [f"the id column {name!r} is gone" for name in schema.key if name not in lake_names]

    def change(self) -> ShapeChange:
        """Returns the planned change. A dropped column gets another name if another column has its name."""
        names = Counter(column.name.lower() for column, _ in self.after)
        self.after = [
            (replace(own, name=_free_name(own, names)), was)
            if own.dropped and names[own.name.lower()] > 1
            else (own, was)
            for own, was in self.after
        ]
        twice = Counter(column.name for column, _ in self.after)
        self.problems += [f"two columns are called {name!r}" for name, count in twice.items() if count > 1]
        return ShapeChange(
            before=self.before,
            after=self._shape(),
            sources={column.name: was or None for column, was in self.after},
            problems=tuple(dict.fromkeys(self.problems)),
        )

    def _shape(self) -> Shape:
        columns = tuple(column for column, _ in self.after)
        return replace(self.before, columns=columns, highest=self.highest, generation=self.generation)

    def _add(self, column: Column, *, dropped: bool = False) -> None:
        new = replace(new_column(column), dropped=dropped)
        if new.missing is not None and new.missing_value is None:
            self.problems.append(f"the default {column.missing!r} of {column.name!r} does not fit into {new.type}")
        self._put(new, "")

    def _put(self, own: LakeColumn, was: str) -> None:
        self.places.add(len(self.after), own)
        self.after.append((own, was))

    def _refuse(self, column: Column, own: LakeColumn) -> None:
        self.problems.append(
            f"{column.name!r} is {column.type} ({resolve(column.type).spark}) and {own.type} in the lake"
        )


def taken_over(
    before: Shape, schema: TableSchema, source_id: int, *, keeps_dropped: bool, is_known: bool = True
) -> ShapeChange:
    """Returns the change after which a history can take over rows that have this schema.

    A new snapshot may follow a change that no stream shows. Then a column that cannot hold the new values counts as
    dropped, and a new one begins beside it. In another source table of the same name, column numbers mean other
    columns: there, columns are the same if their names are. `is_known`: the history has had rows of this registration
    of the table; that decides where the source gives no `source_id`, since its numbers begin again with a new one.
    """
    is_same = source_id == before.source_id if source_id and before.source_id else is_known
    columns = tuple(_taken_over(own, before, schema, is_same=is_same) for own in before.columns)
    generation = min(before.generation, schema.generation)
    highest = before.highest if is_same else 0
    marked = replace(before, columns=columns, source_id=source_id, generation=generation, highest=highest)
    return replace(fitted(marked, schema, keeps_dropped=keeps_dropped, keeps_wider=True), before=before)


def ids_before(before: Shape, schema: TableSchema, source_id: int, *, is_known: bool = True) -> list[str | None]:
    """Returns the columns of a history that have the ids of this schema; None for one that it does not have."""
    sources = taken_over(before, schema, source_id, keeps_dropped=True, is_known=is_known).sources
    return [sources.get(name) for name in schema.key]


def _taken_over(own: LakeColumn, before: Shape, schema: TableSchema, *, is_same: bool) -> LakeColumn:
    ended = replace(own, number=None, dropped=True)
    if is_same:
        wanted = next((column for column in schema.columns if before.find(column) == own), None)
    else:
        wanted = next((column for column in schema.columns if column.name == own.name and not own.dropped), None)
    if wanted is None:
        return own if is_same or own.number is None else ended
    type_ = resolve(wanted.type).spark
    return replace(own, number=wanted.number) if wider(own.type, type_) or wider(type_, own.type) else ended


def _free_name(own: LakeColumn, names: Counter[str]) -> str:
    """Returns a name for a dropped column that no column has, and counts it among the `names`."""
    candidates = (f"{DROPPED_PREFIX}{number}_{own.name}" for number in chain((own.number or 0,), itertools.count()))
    name = next(name for name in candidates if not names[name.lower()])
    names[name.lower()] += 1
    return name


def in_one_claim(schemas: Iterable[TableSchema | None]) -> int:
    """Returns how many of the first slices one claim may take.

    None stands for a late slice. Existing rows are rewritten once per claim, before it is
    applied. So a change that needs a rewrite begins a new claim.
    """
    seen: dict[TableSchema, Shape] = {}
    count = 0
    for count, schema in enumerate(schemas):
        if schema is not None and schema not in seen:
            if any(_begins_claim(*earlier, schema) for earlier in seen.items()):
                return count
            seen[schema] = shape_of_source(schema)
    return count + 1


def _begins_claim(before: TableSchema, shape: Shape, after: TableSchema) -> bool:
    """Whether rows of the two schemas cannot be merged in one claim. `shape`: that of `before`."""
    change = fitted(shape, after)
    key = tuple(change.sources.get(name) for name in after.key)
    # a delete from a keyless table has all columns of a row; an insert before the change had one column more
    loses_copies = before.is_keyless and any(column.dropped for column in change.after.columns)
    return change.rewrites or loses_copies or bool(change.problems) or key != before.key
