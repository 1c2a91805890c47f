"""Acceptance cases written in Debezium's files, many at once: each has its own tables in one pipeline.

What is written before one `consume` and one `apply` is a chunk; after it the lake must show what the case expects.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from tests.support.acceptance_cases import Case, CaseTable, Change, Row
from tests.support.case_runs import slicings
from tests.support.debezium_lines import change_lines, debezium_settings

MISFIT, MENDED = "3000000000.5", "3000000000"
SHUFFLED_OVER = 3
LONG, FEW = 10, 3
SHIFT = 1_000
Lines = list[tuple[int, str]]
"""Each with its stream partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """`passed`: how many transactions of the case have come when the lines are applied; None where nobody can say."""

    lines: Lines
    passed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCase:
    """One case, written in one way. `name` is part of its tables' names.

    `shift`: which of several that share a table. The first column, of the id if there is one, tells them apart.
    """

    name: str
    case: Case
    chunks: tuple[Chunk, ...]
    shift: int | None = None

    @property
    def stream_partitions(self) -> set[int]:
        return {partition for chunk in self.chunks for partition, _ in chunk.lines}

    @property
    def kind(self) -> tuple[object, ...]:
        """What cases have in common that can share a pipeline."""
        spread = self.case.ordered and len(self.stream_partitions) > 1
        return self.case.ordered, self.case.sequence_by, spread

    def table(self, name: str) -> TableName:
        return TableName(database="cases", schema="public", table=f"{self.name}_{name}")

    def tables(self) -> tuple[TableName, ...]:
        return tuple(map(self.table, self.case.tables))

    def is_own(self, table: TableName, row: Row) -> bool:
        if self.shift is None:
            return True
        settings = next(found for name, found in self.case.tables.items() if self.table(name) == table)
        value = row[_telling(settings)]
        return value // SHIFT == self.shift if isinstance(value, int) else value.endswith(f"~{self.shift}")

    def settings(self) -> dict[str, Any]:
        found = debezium_settings(self.case)
        for name, entry in zip(self.case.tables, found["tables"], strict=True):
            entry["name"] = str(self.table(name))
        return found

    def expected(self, passed: int | None) -> dict[TableName, list[Row]]:
        rows = {} if passed is None else self.case.expected.get(passed, {})
        return {self.table(name): found for name, found in rows.items()}


def as_given(name: str, case: Case, *, shift: int | None = None) -> WrittenCase:
    return sliced(name, case, (len(case.transactions),), shift=shift)


def sliced(name: str, case: Case, ends: Sequence[int], *, shift: int | None = None) -> WrittenCase:
    case = case if shift is None else shifted(case, shift)
    chunks = [Chunk(lines=_all(parts), passed=end) for end, parts in _cut(name, case, ends)]
    return WrittenCase(name=name, case=case, chunks=tuple(chunks), shift=shift)


def twice(name: str, case: Case, ends: Sequence[int]) -> WrittenCase:
    """Every line twice; where the order does not ask for it, every chunk again too, and at the end the whole log."""
    whole = _all(_parts(name, case))
    chunks = []
    for end, parts in _cut(name, case, ends):
        chunk = Chunk(lines=[line for line in _all(parts) for _ in range(2)], passed=end)
        chunks += [chunk] if case.ordered else [chunk, chunk]
    if not case.ordered:
        chunks.append(Chunk(lines=whole, passed=len(case.transactions)))
    return WrittenCase(name=name, case=case, chunks=tuple(chunks))


def shuffled(name: str, case: Case, chance: Random) -> WrittenCase:
    """Arrival across stream partitions in any order; where the stream is ordered, each of them keeps its own."""
    waiting: dict[int, Lines] = {}
    for place, (partition, line) in enumerate(_all(_parts(name, case))):
        arrives_in = partition if case.ordered else chance.randrange(SHUFFLED_OVER)
        waiting.setdefault(partition if case.ordered else place, []).append((arrives_in, line))
    chunks: list[Lines] = [[]]
    while waiting:
        source = chance.choice(list(waiting))
        chunks[-1].append(waiting[source].pop(0))
        if not waiting[source]:
            del waiting[source]
        if chance.random() < chance.choice((0.1, 0.9)):
            chunks.append([])
    ends = [None] * (len(chunks) - 1) + [len(case.transactions)]
    return WrittenCase(
        name=name,
        case=case,
        chunks=tuple(Chunk(lines=lines, passed=passed) for lines, passed in zip(chunks, ends, strict=True)),
    )


def every_slicing(case: Case, most: int) -> list[tuple[int, ...]]:
    """A sample of so many where there are more; of a long case a few with few claims."""
    parts = len(case.transactions)
    if parts <= LONG:
        return list(slicings(parts, most))
    chance = Random(parts)
    return [(parts,), *((*sorted(chance.sample(range(1, parts), FEW)), parts) for _ in range(FEW))][:most]


def settings_of(written: Sequence[WrittenCase], folder: Path, **more: Any) -> Settings:
    """`written` are of one kind. Every stream partition has its folder."""
    for partition in sorted({number for each in written for number in each.stream_partitions}):
        (folder / "events" / str(partition)).mkdir(parents=True, exist_ok=True)
    found = [each.settings() for each in written]
    source = found[0]["source"] | more.pop("source", {})
    tables = list({table["name"]: table for each in found for table in each["tables"]}.values())
    document = {"folder": folder, "name": folder.name, "lake": "lake", "slice_length": "1d", **more}
    return Settings.model_validate({**document, "source": source, "tables": tables})


def shifted(case: Case, number: int) -> Case:
    """The same with other ids, so that it can share a table with its like."""
    changes = tuple(_shifted(case, change, number) for change in case.events)
    mended = None if case.mended is None else [_shift(case, "", row, number) for row in case.mended]
    written = {name: getattr(case, name) for name in Case.model_fields}
    return Case(**(written | {"events": changes, "mended": mended}))


def widened(case: Case, table: str, columns: dict[str, str]) -> Case:
    """The same over a table with more columns, which no event tells and which are NULL."""
    ((_, before),) = case.tables.items()
    more = tuple(name for name in columns if name not in before.columns)
    nothing: Row = dict.fromkeys(more)
    changes = tuple(
        change.model_copy(
            update={
                "lacking": (*change.lacking, *more),
                "expect": [row | nothing for row in change.expect] if isinstance(change.expect, list) else None,
            }
        )
        for change in case.events
    )
    mended = None if case.mended is None else [row | nothing for row in case.mended]
    tables = {table: before.model_copy(update={"columns": columns})}
    written = {name: getattr(case, name) for name in Case.model_fields}
    return Case(**(written | {"tables": tables, "events": changes, "mended": mended}))


def by_kind(written: Iterable[WrittenCase]) -> list[list[WrittenCase]]:
    kinds: dict[tuple[object, ...], list[WrittenCase]] = {}
    for each in written:
        kinds.setdefault(each.kind, []).append(each)
    return list(kinds.values())


def _cut(name: str, case: Case, ends: Sequence[int]) -> Iterator[tuple[int, list[Lines]]]:
    parts = _parts(name, case)
    for start, end in zip((0, *ends), ends, strict=False):
        yield end, parts[start:end]


def _parts(name: str, case: Case) -> list[Lines]:
    """The lines of each transaction of the case; an event that does not fit stands before what comes next."""
    parts: list[Lines] = []
    unfit: Lines = []
    transaction: int | None = None
    for change in case.changes:
        lines = [(partition, _text(name, change, line)) for partition, line in change_lines(case, change)]
        if change.unfit:
            unfit += lines
        elif parts and transaction == change.transaction:
            parts[-1] += unfit + lines
            unfit = []
        else:
            parts.append(unfit + lines)
            unfit = []
            transaction = change.transaction
    parts[-1] += unfit
    return parts


def _text(name: str, change: Change, line: dict[str, Any]) -> str:
    if line["value"] is not None:
        source = line["value"]["source"]
        source["table"] = f"{name}_{source['table']}"
    text = json.dumps(line)
    return text.replace(MENDED, MISFIT) if change.mended else text


def _all(parts: Iterable[Lines]) -> Lines:
    return [line for part in parts for line in part]


def _telling(table: CaseTable) -> str:
    return table.id[0] if table.id else next(iter(table.columns))


def _shifted(case: Case, change: Change, number: int) -> Change:
    names = change.found & {"insert", "read", "update", "before", "delete", "move", "moved_from"}
    found: dict[str, Any] = {name: _shift(case, change.table, getattr(change, name), number) for name in names}
    if change.for_ids is not None:
        low, high = change.for_ids
        found["for_ids"] = (low + number * SHIFT, high + number * SHIFT)
    if isinstance(change.expect, dict):
        tables = change.expect.items()
        found["expect"] = {name: [_shift(case, name, row, number) for row in rows] for name, rows in tables}
    elif change.expect is not None:
        found["expect"] = [_shift(case, "", row, number) for row in change.expect]
    return change.model_copy(update=found)


def _shift(case: Case, table: str, row: Row, number: int) -> Row:
    name = _telling(case.tables[table or next(iter(case.tables))])
    value = row.get(name)
    if value is None:
        return row
    return row | {name: value + number * SHIFT if isinstance(value, int) else f"{value}~{number}"}
