"""History tables on Spark: the cases of SCD type 2, and random logs in random claims against the reference."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.lake.columns import history_of
from cdc_pipeline.lake.protocol import ClaimWork, LakeTable
from cdc_pipeline.lake.session import connect
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import CURRENT, DELETED, END_VERSION, VALID_FROM, VALID_TO, VERSION, Column, TableSchema
from tests.support.lake import Feed, commit_time, event, lake_table_rows, move, table_of, values_by_id
from tests.support.lake import version as version_of
from tests.support.lakes import spark_lake
from tests.support.reference.history import Period, periods_of
from tests.support.reference.model import Event, Id

OTHERS = ("name", "first name", "at")
"""Names that need column mapping, and that SQL might take for its own."""
SCHEMA = TableSchema(
    columns=(
        Column(name="id", type="int8"),
        Column(name="name", type="text"),
        Column(name="first name", type="text"),
        Column(name="at", type="int4"),
    ),
    key=("id",),
)
IDS, EVENTS, CLAIMS = 12, 40, 3
MORE_ORDERED = (("by Arrow", 0), ("by Spark", 0), ("by Arrow", 1), ("by Arrow", 2), ("by Arrow", 3))
"""Seed 0 makes whole rows only."""


@pytest.fixture
def session(spark_url: str) -> Iterator[SparkSession]:
    session = connect(spark_url)
    yield session
    session.stop()


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "bucket")


def history_rows(store: LocalObjectStore, table: LakeTable) -> dict[Id, list[Period]]:
    """What readers see: by id, oldest first. Times and flags are checked against the versions."""
    found: dict[Id, list[Period]] = {}
    rows = [row for row in lake_table_rows(store, history_of(table)) if not row[DELETED]]
    for row in sorted(rows, key=lambda each: each[VERSION]):
        values = tuple((name, row[name]) for name in table.schema.names if name not in table.schema.key)
        period = Period(version=row[VERSION], end=row[END_VERSION], values=values)
        found.setdefault(tuple(row[name] for name in table.schema.key), []).append(period)
        assert row[CURRENT] == (row[END_VERSION] is None)
        assert row[VALID_FROM] == commit_time(row[VERSION])
        assert row[VALID_TO] == (None if row[END_VERSION] is None else commit_time(row[END_VERSION]))
    return found


def random_event(chance: Random, number: int, *, partial: bool) -> list[Event]:
    values: dict[str, object] = {
        "name": chance.choice(["a", "b", None]),
        "first name": chance.choice(["x", "y"]),
        "at": chance.choice([1, 1, 2]),
    }
    kind = chance.choice("iuuuud")
    if kind == "d":
        return [event("d", number, chance.randrange(IDS))]
    if partial:
        values = {name: value for name, value in values.items() if chance.random() < 0.6}
    return [event(kind, number, chance.randrange(IDS), **values)]


def in_claims(feed: Feed, log: Sequence[Sequence[Event]], chance: Random) -> Iterator[ClaimWork]:
    """Cuts the log into claims of two slices."""
    ends = sorted(chance.sample(range(1, len(log)), CLAIMS - 1))
    for start, end in zip([0, *ends], [*ends, len(log)], strict=True):
        events = [each for together in log[start:end] for each in together]
        middle = len(events) // 2
        yield feed.claim(events[:middle], events[middle:])


@pytest.mark.parametrize(
    ("searched", "seed"),
    [("by Spark", 1), *(pytest.param(*each, marks=pytest.mark.nightly) for each in MORE_ORDERED)],
)
def test_random_claims_in_order(session: SparkSession, store: LocalObjectStore, searched: str, seed: int) -> None:
    chance = Random(seed)
    table = table_of(SCHEMA, keeps_history=True)
    lake = spark_lake(session, store, 1000 if searched == "by Arrow" else 0)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    log: list[list[Event]] = []
    for number in range(1, EVENTS + 1):
        if chance.random() < 0.05:
            log.append([event("t", number)])
        elif chance.random() < 0.1:
            old, new = chance.sample(range(IDS), 2)
            log.append(move(number, (old,), (new,), name="moved"))
        else:
            log.append(random_event(chance, number, partial=seed > 0))
    for work in in_claims(feed, log, chance):
        lake.upsert(table, work)
    wanted = periods_of([each for together in log for each in together], columns=OTHERS)
    assert history_rows(store, table) == wanted
    # what is current is what the table itself has
    now = {id_: tuple(value for _, value in found[-1].values) for id_, found in wanted.items() if found[-1].end is None}
    rows = [row for row in lake_table_rows(store, table) if not row[DELETED]]
    assert values_by_id(table, rows) == now


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (0, 2, 3))])
def test_random_claims_in_any_order(session: SparkSession, store: LocalObjectStore, seed: int) -> None:
    chance = Random(seed)
    table = table_of(SCHEMA, ordered=False, keeps_history=True)
    lake = spark_lake(session, store)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    log = [random_event(chance, number, partial=seed > 0) for number in range(1, EVENTS + 1)]
    arriving = chance.sample(log, len(log)) + chance.sample(log, len(log) // 3)
    for work in in_claims(feed, arriving, chance):
        lake.upsert(table, work)
    assert history_rows(store, table) == periods_of([each for part in log for each in part], columns=OTHERS)


def test_a_claim_applied_again_changes_nothing(session: SparkSession, store: LocalObjectStore) -> None:
    table = table_of(SCHEMA, keeps_history=True)
    lake = spark_lake(session, store)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    person = {"name": "a", "first name": "x"}
    lake.upsert(table, feed.claim([event("i", 1, 9, at=1, **person)]))
    first = feed.claim([event("i", 1, 1, at=1, **person), event("u", 2, 1, at=2, **person)])
    second = feed.claim([event("d", 3, 1), event("i", 4, 2, at=1, **person)])
    lake.upsert(table, first)
    lake.upsert(table, second)
    before, version = history_rows(store, table), lake.read_version(history_of(table))
    lake.rewind(table, 1, fence_then=None)
    lake.upsert(table, replace(first, claim_id="other"))
    lake.upsert(table, replace(second, claim_id="another"))
    assert history_rows(store, table) == before
    assert lake.read_version(history_of(table)) == version
    assert version_of(3) == before[1,][-1].end
