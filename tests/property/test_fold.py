"""Spark's fold and MERGE come out as the model does, for random logs cut into claims anywhere."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from cdc_pipeline.fold.model import Event, Row, Table, apply_events
from cdc_pipeline.lake.session import connect
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.steps import no_step
from tests.support.lake import NOW, Feed, event, lake_rows, move, table_of
from tests.support.logs import ChangeLog, change_logs

COLUMNS = ("a", "b")
CLAIMS = 3
LOGS = 300
MANY_LOGS = TableSchema(
    columns=(
        Column(name="log", type="int4"),
        Column(name="id", type="int8"),
        Column(name="a", type="int4"),
        Column(name="b", type="text"),
    ),
    key=("log", "id"),
)


@pytest.fixture
def session(spark_url: str) -> Iterator[SparkSession]:
    session = connect(spark_url)
    yield session
    session.stop()


@given(change_logs(), st.data())
@settings(max_examples=200, deadline=None)
def test_the_model_does_not_care_where_a_log_is_cut(log: ChangeLog, data: st.DataObject) -> None:
    cut = data.draw(st.integers(min_value=0, max_value=len(log.transactions)))
    first = [each for part in log.transactions[:cut] for each in part]
    rest = [each for part in log.transactions[cut:] for each in part]
    for soft in (False, True):
        once = apply_events({}, [*first, *rest], columns=COLUMNS, soft=soft)
        twice = apply_events(apply_events({}, first, columns=COLUMNS, soft=soft), rest, columns=COLUMNS, soft=soft)
        assert twice == once


@given(change_logs(), st.randoms())
@settings(max_examples=200, deadline=None)
def test_the_model_does_not_care_for_order_of_arrival_or_repetition(log: ChangeLog, order: random.Random) -> None:
    events = log.events
    shuffled = [*events, *order.choices(events, k=len(events) // 2)] if events else []
    order.shuffle(shuffled)
    assert apply_events({}, shuffled, columns=COLUMNS) == apply_events({}, events, columns=COLUMNS)


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_spark_folds_and_merges_as_the_model_does(deletes: str, session: SparkSession, tmp_path: Path) -> None:
    """Many logs at once: the number of the log is a part of the id, so that Spark's fixed cost is shared."""
    chance = random.Random(f"fold-{deletes}")
    logs = [ChangeLog.drawn(chance) for _ in range(LOGS)]
    expected = {
        (number, *id_): row
        for number, log in enumerate(logs)
        for id_, row in apply_events({}, log.events, columns=COLUMNS, soft=deletes == "soft").items()
    }
    claims: list[list[Event]] = [[] for _ in range(CLAIMS)]
    for number, log in enumerate(logs):
        for place, events in enumerate(log.cut(chance, CLAIMS)):
            claims[place] += [_in_log(number, each) for each in (*events, *events[:1])]
    for events in claims:
        chance.shuffle(events)
    assert _spark_table(session, tmp_path, MANY_LOGS, deletes, claims) == expected


@pytest.mark.xdist_group("spark")
def test_spark_truncates_as_the_model_does(session: SparkSession, tmp_path: Path) -> None:
    before = [event("i", number, number % 9, a=number, b="x") for number in range(1, 9)]
    middle = [event("u", 9, 1, a=5), event("t", 10), event("i", 11, 2, a=6, b="y"), *move(12, (2,), (3,), b="z")]
    late = [event("i", 13, 4, a=1, b="w"), event("t", 14), event("i", 15, 5, a=2, b="v")]
    schema = TableSchema(columns=MANY_LOGS.columns[1:], key=("id",))
    expected = apply_events({}, [*before, *middle], columns=COLUMNS)
    assert _spark_table(session, tmp_path / "one", schema, "hard", [before, middle]) == expected
    expected = apply_events({}, [*before, *middle, *late], columns=COLUMNS)
    assert _spark_table(session, tmp_path / "two", schema, "hard", [before, [*middle, *late]]) == expected


def _in_log(number: int, each: Event) -> Event:
    old_id = (number, *each.old_id) if each.old_id else ()
    return Event(
        operation=each.operation, version=each.version, id=(number, *each.id), old_id=old_id, values=each.values
    )


def _spark_table(
    session: SparkSession, folder: Path, schema: TableSchema, deletes: str, claims: list[list[Event]]
) -> Table:
    store = LocalObjectStore(folder)
    table = table_of(schema, deletes="soft" if deletes == "soft" else "hard")
    lake = SparkLake(open_session=lambda: session, store=store, clock=lambda: NOW, on_step=no_step)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    for events in claims:
        middle = len(events) // 2
        lake.upsert(table, feed.claim(events[:middle], events[middle:]))
    return {
        id_: Row(
            version=str(row["_cdc_version"]),
            values={name: row[name] for name in COLUMNS},
            deleted=bool(row.get("_cdc_deleted", False)),
        )
        for id_, row in lake_rows(session, store, table).items()
    }
