"""History tables follow changes of columns, of a stream and of a snapshot."""

from dataclasses import replace
from functools import partial

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.errors import StaleEpoch
from cdc_pipeline.lake.columns import history_of
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.reader_view import reader_view_sql
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import CURRENT, END_VERSION, VALID_TO, VERSION, Column, TableSchema
from cdc_pipeline.steps import Moment
from tests.support.history_tables import number_of, publish, put_rows, spans
from tests.support.lake import Feed, commit_time, event, lake_table_rows, table_of, version
from tests.support.lakes import spark_lake


@pytest.fixture
def table(lake: SparkLake) -> LakeTable:
    table = table_of(keeps_history=True)
    lake.create_table(table)
    return table


def test_the_history_follows_changed_columns(lake: SparkLake, store: LocalObjectStore, table: LakeTable) -> None:
    before, city = TableSchema(columns=numbered("name", "age"), key=("id",)), Column(name="city", type="text", number=4)
    renamed = Column(name="years", type="int8", number=3)
    after = TableSchema(
        columns=(*before.columns[:2], renamed, replace(city, missing="Rome")), key=("id",), generation=2
    )
    table = replace(table, schema=before, name=replace(table.name, table="others"))
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("i", 1, 1, name="a", age=1), event("i", 1, 2, name="b", age=1)]))
    lake.upsert(table, feed.claim([event("u", 2, 1, years=2, city="Oslo")], schema=after))
    table = replace(table, schema=after)
    rows = lake_table_rows(store, history_of(table))
    found = {(row["id"], number_of(row[VERSION])): (row["name"], row["years"], row["city"]) for row in rows}
    assert found == {(1, 1): ("a", 1, "Rome"), (1, 2): ("a", 2, "Oslo"), (2, 1): ("b", 1, "Rome")}
    assert spans(store, table) == {1: [("a", 1, 2), ("a", 2, None)], 2: [("b", 1, None)]}
    lake.upsert(table, feed.claim([event("d", 3, 2)], schema=after))
    assert spans(store, table)[2] == [("b", 1, 3)]
    latest, then = lake.read_version(history_of(table)) or 0, replace(table, schema=before)
    source = put_rows(store, then, "then", [(1, "a", 1), (2, "b", 1)])
    assert lake.compare(history_of(then), source, latest, as_of=version(1)).differing_rows == 0


def test_rows_that_the_history_takes_over_before_a_column_have_its_default(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable
) -> None:
    """The history begins, or is switched on again, with the claim that brings the column to the table."""
    before, city = TableSchema(columns=numbered("name"), key=("id",)), Column(name="city", type="text", number=3)
    after = replace(before, columns=(*before.columns, replace(city, missing="Rome")), generation=2)
    for name, had_one in {"begun": False, "again": True}.items():
        then = replace(table, schema=before, name=replace(table.name, table=name))
        lake.create_table(then)
        feed = Feed(store=store, table=then)
        lake.upsert(replace(then, keeps_history=had_one), feed.claim([event("i", 1, id_, name="a") for id_ in (1, 2)]))
        meanwhile = [event("u", 2, 2, name="b"), event("i", 3, 3, name="c"), event("i", 4, 4, name="d")]
        lake.upsert(replace(then, keeps_history=False), feed.claim(meanwhile))
        changes = [event("u", 9, 1, name="a", city="Oslo"), event("u", 10, 4, name="e", city="Bern")]
        lake.upsert(replace(then, schema=after), feed.claim(changes, schema=after))
        rows = lake_table_rows(store, history_of(then))
        periods = {(1, 1): "Rome", (1, 9): "Oslo", (2, 2): "Rome", (3, 3): "Rome", (4, 4): "Rome", (4, 10): "Bern"}
        wanted = periods | ({(2, 1): "Rome"} if had_one else {})
        assert {(row["id"], number_of(row[VERSION])): row["city"] for row in rows} == wanted
        current = {row["id"]: row["city"] for row in rows if row[CURRENT]}
        assert current == {row["id"]: row["city"] for row in lake_table_rows(store, then)}


def test_a_snapshot_with_another_type_keeps_the_old_values_beside_the_new_ones(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable
) -> None:
    before = TableSchema(columns=numbered("name", "age"), key=("id",))
    texts = replace(before, columns=(*before.columns[:2], Column(name="age", type="text", number=3)), generation=7)
    table = replace(table, schema=before, name=replace(table.name, table="retyped"))
    publish(lake, store, table, [(1, "a", 1), (2, "b", None)], at=5, fence=0)
    table = replace(table, schema=texts)
    publish(lake, store, table, [(1, "a", "x"), (2, "b", None)], at=9, fence=0)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("u", 11, 2, name="b", age="y")], schema=texts))
    rows = lake_table_rows(store, history_of(table))
    assert {
        (row["id"], number_of(row[VERSION])): (row["age"], row["_cdc_dropped_0_age"], row[CURRENT]) for row in rows
    } == {
        (1, 5): (None, 1, False),
        (1, 9): ("x", 1, True),
        (2, 5): (None, None, False),
        (2, 11): ("y", None, True),
    }
    view = reader_view_sql(history_of(table), "/lake", lake.read_columns(history_of(table)))
    assert "_cdc_dropped" not in view


def test_columns_of_a_source_table_that_was_created_again_go_on_by_their_names(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable
) -> None:
    """Its columns have the numbers of others now."""
    before = TableSchema(columns=numbered("name", "age"), key=("id",))
    id_, name, age = before.columns
    after = replace(before, columns=(id_, replace(age, number=2), replace(name, number=3)))
    table = replace(table, schema=before, source_id=1, name=replace(table.name, table="again"))
    publish(lake, store, table, [(1, "a", 1), (2, "b", 2)], at=5, fence=0)
    table = replace(table, schema=after, source_id=2)
    publish(lake, store, table, [(1, 1, "a"), (2, 3, "b")], at=9, fence=0)
    assert spans(store, table) == {1: [("a", 5, None)], 2: [("b", 5, 9), ("b", 9, None)]}
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("u", 11, 1, name="c", age=1)], schema=after))
    rows = lake_table_rows(store, history_of(table))
    assert {(row["id"], row["name"], row["age"]) for row in rows if row[CURRENT]} == {(1, "c", 1), (2, "b", 3)}


def test_columns_of_a_table_that_was_registered_again_go_on_by_their_names(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable
) -> None:
    """A source that gives its columns no numbers has them numbered by the pipeline, from 1 on if it knows none."""
    id_, name, age = numbered("name", "age")
    before = TableSchema(columns=(id_, name, replace(age, number=9)), key=("id",))
    after = TableSchema(columns=(id_, replace(age, number=2), replace(name, number=3)), key=("id",))
    table = replace(table, schema=before, name=replace(table.name, table="listed"))
    publish(lake, store, table, [(1, "a", 1), (2, "b", 2)], at=5, fence=0)
    publish(lake, store, table, [(1, "a", 1), (2, "c", 2)], at=7, fence=0)
    table = replace(table, schema=after, table_uuid="uuid-2")
    publish(lake, store, table, [(1, 1, "a"), (2, 3, "c")], at=9, fence=0)
    assert spans(store, table) == {1: [("a", 5, None)], 2: [("b", 5, 7), ("c", 7, 9), ("c", 9, None)]}
    rows = lake_table_rows(store, history_of(table))
    assert {(row["id"], row["age"]) for row in rows} == {(1, 1), (2, 2), (2, 3)}


def test_ids_of_another_type_end_all_periods_and_begin_new_ones(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable
) -> None:
    before = TableSchema(columns=numbered("name"), key=("id",))
    after = replace(before, columns=(Column(name="id", type="text", number=1), before.columns[1]), generation=7)
    table = replace(table, schema=before, source_id=1, name=replace(table.name, table="uuids"))
    publish(lake, store, table, [(1, "a"), (2, "b")], at=5, fence=0)
    table = replace(table, schema=after, source_id=2)
    publish(lake, store, table, [("x", "a"), ("y", "c")], at=9, fence=0)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("d", 11, "x"), event("u", 12, "y", name="d")], schema=after))
    rows = lake_table_rows(store, history_of(table))
    found = {(row["_cdc_dropped_0_id"], row["id"], row["name"], number_of(row[VERSION])): row[CURRENT] for row in rows}
    assert found == {
        (1, None, "a", 5): False,
        (2, None, "b", 5): False,
        (None, "x", "a", 9): False,
        (None, "y", "c", 9): False,
        (None, "y", "d", 12): True,
    }
    assert {row[VALID_TO] for row in rows if row["id"] is None} == {commit_time(version(9))}


@pytest.mark.parametrize("holds_until", ["its check of the lease", "the commit right after it"])
def test_a_process_that_has_lost_its_lease_ends_no_periods_of_the_next_one(
    session: SparkSession, store: LocalObjectStore, table: LakeTable, holds_until: str
) -> None:
    before = TableSchema(columns=numbered("name"), key=("id",))
    after = replace(before, columns=(Column(name="id", type="text", number=1), before.columns[1]), generation=7)
    table = replace(table, schema=before, source_id=1, name=replace(table.name, table="overtaken"))
    rival, overtaken = spark_lake(session, store), list[str]()
    publish(rival, store, table, [(1, "a")], at=5, fence=0)
    table = replace(table, schema=after, source_id=2)
    again = partial(publish, store=store, table=table, people=[("x", "a"), ("y", "b")], at=9, fence=0)
    feed = Feed(store=store, table=table)

    def lose_lease(where: str) -> None:
        if not overtaken and where == holds_until:
            overtaken.append(where)
            again(rival)
            rival.upsert(table, feed.claim([event("u", 11, "y", name="c")], schema=after))

    def on_step(step: str, moment: Moment) -> None:
        if (step, moment) == ("lake_history.commit", Moment.BEFORE):
            lose_lease("the commit right after it")

    def may_commit() -> None:
        lose_lease("its check of the lease")
        if overtaken:
            raise StaleEpoch("another owner has the lease", expected="none", remedy="stop")

    with pytest.raises(StaleEpoch):
        again(spark_lake(session, store, on_step=on_step), may_commit=may_commit)
    rows = lake_table_rows(store, history_of(table))
    assert {(row["id"], row["name"]) for row in rows if row[CURRENT]} == {("x", "a"), ("y", "c")}


@pytest.mark.parametrize("table_uuid", ["uuid-1", "uuid-2"], ids=["same table", "table that was listed again"])
def test_an_id_that_became_another_column_ends_all_periods_that_it_does_not_tell_apart(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable, table_uuid: str
) -> None:
    before = TableSchema(columns=numbered("name", "age"), key=("id",))
    table = replace(table, schema=before, name=replace(table.name, table="named"))
    publish(lake, store, table, [(1, "a", 1), (2, None, 2), (3, "a", 3)], at=5, fence=0)
    table = replace(table, schema=replace(before, key=("name",), generation=7), table_uuid=table_uuid)
    publish(lake, store, table, [(4, "a", 1), (5, "b", 2)], at=9, fence=0)
    rows = lake_table_rows(store, history_of(table))
    assert {(row["id"], row["name"], row["age"]) for row in rows if row[CURRENT]} == {(4, "a", 1), (5, "b", 2)}
    ended = sorted((row["id"], number_of(row[END_VERSION])) for row in rows if not row[CURRENT])
    assert ended == [(1, 9), (2, 9), (3, 9)]


def numbered(*names: str) -> tuple[Column, ...]:
    types = {"name": "text", "age": "int4"}
    others = (Column(name=name, type=types[name], number=number) for number, name in enumerate(names, 2))
    return (Column(name="id", type="int8", number=1), *others)
