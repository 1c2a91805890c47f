"""An acceptance case: tables, what happens to them in the source, and what must be visible; tests/acceptance/*.yml.

tests/acceptance/README.md says what the files hold. A `Change` is what the source does to one row or table; `events_of`
makes the kernel's events of it, `debezium_lines` in tests/support what Debezium writes.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from cdc_pipeline.record import Column, Operation, TableName, TableSchema, encode_position, encode_version
from tests.support.histories import tie_breaking_version
from tests.support.reference.model import Event, Id

FOLDER = Path(__file__).parents[1] / "acceptance"
Row = dict[str, Any]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


def _names(value: object) -> object:
    return [value] if isinstance(value, str) else value


class CaseTable(_Strict):
    """`columns`: name -> PostgreSQL type. Without `id` it is keyless. `id`, `deletes` and so on as in pipeline.yml."""

    columns: dict[str, str]
    id: tuple[str, ...] = ()
    deletes: Literal["hard", "soft"] = "hard"
    truncate: Literal["apply", "ignore"] = "apply"
    partition_by: tuple[dict[str, str], ...] = ()

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in self.id)

    def id_of(self, row: Row) -> Id:
        return tuple(row[name] for name in self.id)

    def schema_of(self) -> TableSchema:
        return TableSchema(
            columns=tuple(Column(name=name, type=type_) for name, type_ in self.columns.items()), key=self.id
        )


class Change(_Strict):
    """One of `insert` to `truncate` is there, or `expect`: what is visible after all changes so far."""

    insert: Row | None = None
    read: Row | None = None
    update: Row | None = None
    before: Row | None = None
    delete: Row | None = None
    move: Row | None = None
    moved_from: Row | None = Field(default=None, alias="from")
    truncate: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    expect: list[Row] | dict[str, list[Row]] | None = None
    absent: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    table: str = ""
    at: int | None = None
    transaction: int | None = None
    partition: int = 0
    old_partition: int | None = None
    clock: int | None = None
    for_ids: tuple[int, int] | None = None
    unfit: str = ""
    mended: bool = False
    place: int = 0

    @property
    def after(self) -> Row | None:
        return next((row for row in (self.insert, self.read, self.update, self.move) if row is not None), None)

    @model_validator(mode="after")
    def _one_thing(self) -> "Change":
        found = [name for name in ("insert", "read", "update", "delete", "move", "expect") if name in self.found]
        if len(found) + bool(self.truncate) != 1:
            message = f"a change is exactly one thing, not {found}"
            raise ValueError(message)
        return self

    @property
    def found(self) -> set[str]:
        return {name for name in self.model_fields_set if getattr(self, name) is not None}


class Case(_Strict):
    """`events` as the file has them; `changes` with every default filled in, in the order of the source.

    `mended`: what is visible after the replay of changes that were unfit at first. `ties`: how many are to be counted.
    """

    case: str
    says: str
    tables: dict[str, CaseTable]
    events: tuple[Change, ...]
    ordered: bool = True
    sequence_by: tuple[str, ...] = ("source.lsn",)
    shuffled: bool = False
    cutoff: int = 0
    ties: int = 0
    mended: list[Row] | None = None
    not_from_files: str = ""

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        return tuple(change for change in self._filled if change.expect is None)

    @cached_property
    def transactions(self) -> list[list[Change]]:
        """The changes that can be applied, in the parts that a cut never divides."""
        parts: list[list[Change]] = []
        for change in self.changes:
            if change.unfit:
                continue
            if parts and parts[-1][0].transaction == change.transaction:
                parts[-1].append(change)
            else:
                parts.append([change])
        return parts

    @cached_property
    def expected(self) -> dict[int, dict[str, list[Row]]]:
        """How many transactions have passed -> rows per table. With every change that stays unfit left out."""
        found = {}
        passed: set[int | None] = set()
        for change in self._filled:
            if change.expect is not None:
                rows = change.expect if isinstance(change.expect, dict) else {self._only_table: change.expect}
                found[len(passed)] = rows
            elif not change.unfit:
                passed.add(change.transaction)
        return found

    @cached_property
    def replayed(self) -> list[Change]:
        """Changes that were unfit at first, and are replayed at the end."""
        return [change.model_copy(update={"unfit": ""}) for change in self.changes if change.mended]

    def name_of(self, table: str) -> TableName:
        return TableName(database="cases", schema="public", table=table)

    @property
    def _only_table(self) -> str:
        (name,) = self.tables
        return name

    @cached_property
    def _filled(self) -> tuple[Change, ...]:
        filled = [each for change in self.events for each in _each_id(change)]
        return tuple(
            change.model_copy(
                update={
                    "place": place,
                    "table": change.table or ("" if change.truncate else next(iter(self.tables))),
                    "at": change.at if "at" in change.model_fields_set else place,
                    "transaction": place if change.transaction is None else change.transaction,
                }
            )
            for place, change in enumerate(filled, start=1)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseEvent:
    """One event of the kernel, in the stream partition where it arrives."""

    table: str
    partition: int
    event: Event


def load_case(path: Path) -> Case:
    return Case.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def case_files() -> list[Path]:
    return sorted(FOLDER.glob("*.yml"))


def events_of(case: Case, change: Change) -> list[CaseEvent]:
    """The kernel's events of a change, at one version: that of the new half of a key change."""
    made = _events(case, change)
    at = change.at or 0
    version = encode_version(at, change.place)
    if made and not case.ordered:
        version = tie_breaking_version(encode_position(at), made[-1].event)
    versioned = [replace(each, event=replace(each.event, version=version)) for each in made]
    return versioned if at >= case.cutoff else []


def _events(case: Case, change: Change) -> list[CaseEvent]:
    if change.truncate:
        event = Event(operation=Operation.TRUNCATE, version="")
        applied = [name for name in change.truncate if case.tables[name].truncate == "apply"]
        return [CaseEvent(table=name, partition=change.partition, event=event) for name in applied]
    table = case.tables[change.table]
    old_partition = change.partition if change.old_partition is None else change.old_partition
    found = []
    old_row = change.delete if change.delete is not None else change.moved_from if table.id else change.before
    if old_row is not None:
        values = {} if table.id else old_row
        old = Event(operation=Operation.DELETE, version="", id=table.id_of(old_row), values=values)
        found.append(CaseEvent(table=change.table, partition=old_partition, event=old))
    if change.after is not None:
        found.append(
            CaseEvent(table=change.table, partition=change.partition, event=_told(table, change, change.after))
        )
    return found


def _told(table: CaseTable, change: Change, row: Row) -> Event:
    written = {name for name in table.columns if name not in (*change.absent, *change.lacking)}
    if written != row.keys():
        message = f"{row} and its absent columns are not the columns of the table: {sorted(written ^ row.keys())}"
        raise ValueError(message)
    operation = Operation.INSERT
    if change.move is not None:
        operation = Operation.MOVE
    elif change.update is not None and table.id:
        operation = Operation.UPDATE
    return Event(
        operation=operation,
        version="",
        id=table.id_of(row),
        old_id=table.id_of(change.moved_from) if change.moved_from is not None else (),
        values={name: value for name, value in row.items() if name not in table.id},
        lacking=frozenset(change.lacking),
    )


def _each_id(change: Change) -> list[Change]:
    """A change with `for_ids` is one for every id of that range, both ends included."""
    if change.for_ids is None:
        return [change]
    low, high = change.for_ids
    names = [name for name in ("insert", "read", "update", "delete") if name in change.found]
    return [
        change.model_copy(update={name: {"id": id_, **getattr(change, name)} for name in names})
        for id_ in range(low, high + 1)
    ]
