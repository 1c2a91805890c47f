"""Whatever is done to a source table between its changes, the lake shows its rows under its columns.

Random changes of the columns and of the rows go to a table that is a dict, and as slices to the lake: in claims that
end where the worker's end, with some rows late, some claims taken back and applied again.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cdc_pipeline.lake.fitting import in_one_claim
from cdc_pipeline.lake.protocol import ClaimWork, SliceInput
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import DELETED, Column, TableSchema
from cdc_pipeline.steps import no_step
from tests.support.lake import Feed, claim_of, event, move, table_of
from tests.support.lakes import Arm, memory_arm, spark_arm
from tests.support.reference.model import Event

ON_SPARK_NIGHTLY = (pytest.mark.spark, pytest.mark.nightly)
NAMES = ("a", "b", "c d", "é")
WIDER = {"int2": "int4", "int4": "int8", "numeric(6,2)": "numeric(9,3)"}
DEFAULTS = {"int2": "7", "int4": "-1", "int8": "8", "text": "o'x\\", "numeric(6,2)": "1.50", "numeric(9,3)": "2.125"}
VALUES: dict[str, Callable[[Random], object]] = {
    "int2": lambda chance: chance.randrange(100),
    "int4": lambda chance: chance.randrange(1 << 20),
    "int8": lambda chance: chance.randrange(1 << 40),
    "text": lambda chance: chance.choice(["x", "", "ü'\\`", "null"]),
    "numeric(6,2)": lambda chance: Decimal(chance.randrange(10_000)).scaleb(-2),
    "numeric(9,3)": lambda chance: Decimal(chance.randrange(100_000)).scaleb(-3),
}


@dataclass(kw_only=True)
class Source:
    """A table as its source has it: `rows` by id hold values by the columns' numbers."""

    chance: Random
    columns: dict[int, Column] = field(default_factory=dict)
    rows: dict[int, dict[int, Any]] = field(default_factory=dict)
    numbers: int = 1
    versions: int = 0

    @property
    def schema(self) -> TableSchema:
        key = Column(name="id", type="int8", number=1)
        return TableSchema(columns=(key, *self.columns.values()), key=("id",))

    def shown(self) -> dict[int, dict[str, Any]]:
        return {
            id_: {"id": id_} | {column.name: row.get(number) for number, column in self.columns.items()}
            for id_, row in self.rows.items()
        }

    def change_columns(self) -> None:
        free = [name for name in NAMES if name not in {column.name for column in self.columns.values()}]
        number = self.chance.choice([0, *self.columns])
        column = self.columns.get(number)
        if column is None and free:
            self._add(self.chance.choice(free))
        elif column is not None:
            match self.chance.randrange(4):
                case 0:
                    del self.columns[number]
                case 1 if free:
                    self.columns[number] = replace(column, name=self.chance.choice(free))
                case 2 if len(self.columns) > 1:
                    other = self.chance.choice([found for found in self.columns if found != number])
                    self.columns[number] = replace(column, name=self.columns[other].name)
                    self.columns[other] = replace(self.columns[other], name=column.name)
                case 3 if column.type in WIDER and column.missing is None:
                    self.columns[number] = replace(column, type=WIDER[column.type])
                case _:
                    pass

    def _add(self, name: str) -> None:
        self.numbers += 1
        type_ = self.chance.choice(list(DEFAULTS))
        missing = self.chance.choice([None, DEFAULTS[type_]])
        self.columns[self.numbers] = Column(name=name, type=type_, number=self.numbers, missing=missing)
        value: Any = missing
        if missing is not None and type_ != "text":
            value = Decimal(missing) if type_.startswith("numeric") else int(missing)
        for row in self.rows.values():
            row[self.numbers] = value

    def change_row(self) -> list[Event]:
        self.versions += 1
        id_ = self.chance.randrange(8)
        old = self.rows.get(id_)
        if old is None:
            self.rows[id_] = self._values(self.columns)
            return [event("i", self.versions, id_, **self._named(self.rows[id_]))]
        match self.chance.randrange(4):
            case 0:
                del self.rows[id_]
                return [event("d", self.versions, id_)]
            case 1 if 8 + id_ not in self.rows:
                self.rows[8 + id_] = self.rows.pop(id_)
                return move(self.versions, (id_,), (8 + id_,))
            case kind:
                told = self._values([number for number in self.columns if kind == 2 or self.chance.random() < 0.5])
                old |= told
                return [event("u", self.versions, id_, **self._named(told))]

    def insert_unseen(self, id_: int) -> Event:
        """A row that its source has and that comes late."""
        self.versions += 1
        self.rows[id_] = self._values(self.columns)
        return event("i", self.versions, id_, **self._named(self.rows[id_]))

    def _values(self, numbers: Any) -> dict[int, Any]:
        return {
            number: None if self.chance.random() < 0.2 else VALUES[self.columns[number].type](self.chance)
            for number in numbers
        }

    def _named(self, values: dict[int, Any]) -> dict[str, Any]:
        return {self.columns[number].name: value for number, value in values.items()}


def claims_of(slices: list[tuple[SliceInput, list[Event]]]) -> list[ClaimWork]:
    """As the worker takes them."""
    claims = []
    while slices:
        end = in_one_claim(None if content.late else content.schema for content, _ in slices)
        taken, slices = slices[:end], slices[end:]
        inputs, events = [content for content, _ in taken], [each for _, found in taken for each in found]
        work = claim_of(inputs, events, inputs[0].number, inputs[-1].number)
        claims.append(replace(work, partial_rows=1, late=any(content.late for content in inputs)))
    return claims


def follow(arm: Arm, seed: object, rounds: int, *, keeps_dropped: bool) -> None:
    source = Source(chance=Random(f"{seed}"))
    chance = source.chance
    table = replace(table_of(source.schema), keeps_dropped=keeps_dropped)
    lake = arm.make(no_step)
    lake.create_table(table)
    feed, applied, late = (
        Feed(store=arm.store, table=table),
        list[tuple[int, ClaimWork]](),
        list[tuple[Event, TableSchema]](),
    )
    for turn in range(rounds):
        waiting = []
        for _ in range(chance.randint(1, 3)):
            for _ in range(chance.randint(0, 2)):
                source.change_columns()
            events = [each for _ in range(chance.randint(1, 5)) for each in source.change_row()]
            waiting.append((feed.slice(events, schema=source.schema), events))
        if chance.random() < 0.3:
            late.append((source.insert_unseen(100 + turn), source.schema))
        if late and chance.random() < 0.5:
            one, schema = late.pop(0)
            waiting.append((replace(feed.slice([one], schema=schema), late=True), [one]))
        for work in claims_of(waiting):
            applied.append((lake.upsert(table, work).lake_version, work))
        if len(applied) > 2 and chance.random() < 0.15:
            place = chance.randrange(len(applied) - 2, len(applied))
            lake.rewind(table, applied[place - 1][0], fence_then=None)
            applied[place:] = [(lake.upsert(table, work).lake_version, work) for _, work in applied[place:]]
        unseen = {each.id[0] for each, _ in late}
        expected = {id_: row for id_, row in source.shown().items() if id_ not in unseen}
        names = lake.read_columns(table)
        rows = [row for row in arm.rows(table) if not row.get(DELETED)]
        assert {row["id"]: {name: row[name] for name in names} for row in rows} == expected
        assert len(rows) == len(expected)


Arms = Callable[[LocalObjectStore, pytest.FixtureRequest], AbstractContextManager[Arm]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arms", "seeds", "rounds", "dropped"),
    [
        pytest.param(memory_arm, range(10), 12, "keep", id="memory-keep"),
        pytest.param(memory_arm, range(10), 12, "drop", id="memory-drop"),
        pytest.param(memory_arm, range(10, 100), 12, "keep", id="memory-keep-many", marks=pytest.mark.nightly),
        pytest.param(memory_arm, range(10, 100), 12, "drop", id="memory-drop-many", marks=pytest.mark.nightly),
        pytest.param(spark_arm, range(1), 3, "keep", id="spark-keep", marks=pytest.mark.spark),
        pytest.param(spark_arm, range(1, 3), 8, "keep", id="spark-keep-many", marks=ON_SPARK_NIGHTLY),
        pytest.param(spark_arm, range(1), 8, "drop", id="spark-drop", marks=ON_SPARK_NIGHTLY),
    ],
)
def test_the_lake_shows_the_rows_of_its_source_through_every_change_of_columns(
    arms: Arms, seeds: range, rounds: int, dropped: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for seed in seeds:
        with arms(LocalObjectStore(tmp_path / str(seed)), request) as arm:
            follow(arm, (seed, dropped), rounds, keeps_dropped=dropped == "keep")
