"""The lake on Spark comes out as the kernel does, claim by claim, for random logs.

Many logs share a table: the number of the log is a part of the id, and so is Spark's fixed cost shared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.lake.protocol import Lake, LakeTable
from cdc_pipeline.lake.session import connect
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import DELETED, STATE, VERSION, Column, Operation, TableSchema, encode_version
from cdc_pipeline.steps import no_step
from tests.support.histories import COLUMNS, History, arrive_anyhow, history_of, keyless_history_of
from tests.support.lake import NOW, Feed, lake_table_rows, table_of
from tests.support.reference.kernel import KeyedTable, deduplicate, join, join_keyless, net_copies, show
from tests.support.reference.model import Event, KeylessRows

LOGS = 300
LONGEST = 16
CODES = 1 << 10
REPEATED = 0.2
SELDOM = (0, 0, 0, 1, 2, 4, 8)
CLAIMS = 3
TRUNCATE, FIRST_MOVE, FIRST_UPDATE = 0, 4, 8
KINDS = 16
SCHEMA = TableSchema(
    columns=(
        Column(name="log", type="int4"),
        Column(name="id", type="int8"),
        *(Column(name=name, type="text") for name in COLUMNS),
    ),
    key=("log", "id"),
)
BAG = TableSchema(columns=(Column(name="a", type="int4"), Column(name="b", type="text")), key=())
Log = list[list[Event]]
"""Claim by claim."""
Seen = dict[tuple[object, ...], tuple[Any, ...]]


@pytest.fixture
def session(spark_url: str) -> Iterator[SparkSession]:
    session = connect(spark_url)
    yield session
    session.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A lake table of its own, in its own bucket."""

    session: SparkSession
    store: LocalObjectStore
    table: LakeTable
    lake: Lake
    feed: Feed

    @classmethod
    def opened(cls, session: SparkSession, folder: Path, table: LakeTable) -> "Arm":
        store = LocalObjectStore(folder)
        lake = SparkLake(open_session=lambda: session, store=store, clock=lambda: NOW, on_step=no_step)
        lake.create_table(table)
        return cls(session=session, store=store, table=table, lake=lake, feed=Feed(store=store, table=table))

    def rows(self) -> list[dict[str, object]]:
        return lake_table_rows(self.store, self.table)


@pytest.mark.parametrize("deletes", ["hard", pytest.param("soft", marks=pytest.mark.nightly)])
def test_an_ordered_log_comes_out_as_the_kernel_says(deletes: str, session: SparkSession, tmp_path: Path) -> None:
    chance = Random(f"ordered {deletes}")
    emptied = [encode_version(number, 0) for number in (5, 13)]
    cuts = [encode_version(number, 0) for number in (0, 6, 9, 10_000)]
    logs = []
    for _ in range(LOGS):
        events = [*_history(chance, kinds=range(1, KINDS), ordered=True).events, *map(_truncate, emptied)]
        claims = [[event for event in events if low <= event.version < high] for low, high in pairwise(cuts)]
        logs.append([_shaken(claim, chance) for claim in claims])
    _check(Arm.opened(session, tmp_path, table_of(SCHEMA, deletes=_soft(deletes))), logs)


@pytest.mark.parametrize("deletes", [pytest.param("hard", marks=pytest.mark.nightly), "soft"])
def test_an_unordered_log_comes_out_as_the_kernel_says(deletes: str, session: SparkSession, tmp_path: Path) -> None:
    """Moves have to come in their order, so the one has moves and the other truncates."""
    chance = Random(f"unordered {deletes}")
    soft = deletes == "soft"
    kinds = [*range(1, FIRST_MOVE), *range(FIRST_UPDATE, KINDS)] if soft else range(1, KINDS)
    truncates = [(f"{encode_version(number, 0)}~~", chance.randrange(CLAIMS)) for number in (5, 11)] if soft else []
    logs = []
    for _ in range(LOGS):
        log = _claims(arrive_anyhow(_history(chance, kinds=kinds, ordered=False), chance))
        for version, place in truncates:
            log[place].append(_truncate(version))
        logs.append(log)
    _check(Arm.opened(session, tmp_path, table_of(SCHEMA, deletes=_soft(deletes), ordered=False)), logs)


def test_a_keyless_table_comes_out_as_the_kernel_says(session: SparkSession, tmp_path: Path) -> None:
    chance = Random("bag")
    arm = Arm.opened(session, tmp_path, table_of(BAG))
    logs = [keyless_history_of(chance.randrange(1 << 7) | 1 for _ in range(LONGEST)) for _ in range(LOGS)]
    emptied = _truncate(encode_version(9, 0))
    rows = KeylessRows()
    for number in range(CLAIMS):
        low, high = (encode_version(6 * place, 0) for place in (number, number + 1))
        everything = [_of_keyless(log, event) for log, found in enumerate(logs) for event in found.events]
        events = [event for event in [*everything, emptied] if low <= event.version < high]
        rows = join_keyless(rows, net_copies(events))
        arm.lake.upsert(arm.table, arm.feed.claim(_shaken(events, chance)))
        assert KeylessRows((("a", row["a"]), ("b", row["b"])) for row in arm.rows() if not row[DELETED]) == rows


def _check(arm: Arm, logs: list[Log]) -> None:
    tables = [KeyedTable() for _ in logs]
    for number in range(CLAIMS):
        tables = [
            join(table, deduplicate(log[number]), tombstones=not arm.table.ordered or arm.table.deletes == "soft")
            for table, log in zip(tables, logs, strict=True)
        ]
        events = [_in_log(place, event) for place, log in enumerate(logs) for event in log[number]]
        truncates = {event.version: event for event in events if event.operation is Operation.TRUNCATE}
        changes = [event for event in events if event.operation is not Operation.TRUNCATE]
        half = len(changes) // 2
        outcome = arm.lake.upsert(arm.table, arm.feed.claim(changes[:half], [*changes[half:], *truncates.values()]))
        soft = arm.table.deletes == "soft"
        assert _seen(arm.rows(), soft=soft) == _expected(tables, soft=soft)
        ties = sum(deduplicate(log[number]).ties for log in logs)
        assert outcome.counts.tied >= ties
        assert bool(outcome.counts.tied) == bool(ties)


def _seen(rows: list[dict[str, object]], *, soft: bool) -> Seen:
    """Dead rows count where deletes are soft, and if they have something to show."""
    shown = {(row["log"], row["id"]): _shown(row) for row in rows}
    assert len(shown) == len(rows)
    return {id_: row for id_, row in shown.items() if row[0] != "dead" or (soft and any(row[1]))}


def _shown(row: dict[str, Any]) -> tuple[Any, ...]:
    values = tuple(row[name] for name in COLUMNS)
    if not row[DELETED]:
        return ("visible", row[VERSION], values)
    state = row[STATE]
    if state is not None and state["deletion"] < row[VERSION]:
        return ("incomplete", row[VERSION])
    return ("dead", values)


def _expected(tables: list[KeyedTable], *, soft: bool) -> Seen:
    seen: Seen = {}
    for number, table in enumerate(tables):
        for id_, row in show(table, columns=COLUMNS, soft=soft).items():
            values = tuple(row.values.get(name) for name in COLUMNS)
            if row.deleted and any(values):
                seen[number, *id_] = ("dead", values)
            elif row.incomplete:
                seen[number, *id_] = ("incomplete", row.version)
            elif not row.deleted:
                seen[number, *id_] = ("visible", row.version, values)
    return seen


def _history(chance: Random, *, kinds: Sequence[int], ordered: bool) -> History:
    codes = [chance.choice(kinds) + KINDS * chance.randrange(CODES) for _ in range(chance.randint(1, LONGEST))]
    return history_of(codes, ordered=ordered, lost=chance.choice(SELDOM), late_column_from=chance.choice(SELDOM))


def _claims(parts: Log) -> Log:
    """As many as CLAIMS: what comes later comes with the last."""
    padded = [*parts, *([] for _ in range(CLAIMS))]
    return [*padded[: CLAIMS - 1], [event for part in padded[CLAIMS - 1 :] for event in part]]


def _truncate(version: str) -> Event:
    return Event(operation=Operation.TRUNCATE, version=version)


def _shaken(events: list[Event], chance: Random) -> list[Event]:
    """In any order, some of them twice."""
    shaken = [*events, *(event for event in events if chance.random() < REPEATED)]
    chance.shuffle(shaken)
    return shaken


def _in_log(number: int, event: Event) -> Event:
    if event.operation is Operation.TRUNCATE:
        return event
    old_id = (number, *event.old_id) if event.old_id else ()
    return replace(event, id=(number, *event.id), old_id=old_id)


def _of_keyless(log: int, event: Event) -> Event:
    """No two logs share a version: each event of a keyless table has its own."""
    return replace(event, version=f"{event.version[:-8]}{log + 1:08x}")


def _soft(deletes: str) -> Literal["hard", "soft"]:
    return "soft" if deletes == "soft" else "hard"
