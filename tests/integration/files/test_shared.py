"""Consumers share the folders of Debezium's events; a folder that cannot be read stops no other one."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from cdc_pipeline.consume.consumer import Consumer
from cdc_pipeline.consume.stream_to_slices import stream_to_slices
from cdc_pipeline.errors import PartitionFailed, SourceChanged
from cdc_pipeline.operations.source_setup.sharing import Membership
from cdc_pipeline.record import TableName
from snapshot.wiring import export_at
from tests.crash.world import apply_all, make_lake, take_snapshot
from tests.integration.files.test_changed_types import create, with_fields
from tests.support.event_files import EventFolder
from tests.support.exports import lake_rows
from tests.support.shards import debezium_event

ORDERS, ITEMS = "public.orders", "public.items"
TABLES = tuple({"name": name, "id": ["id"], "columns": {"id": "int", "note": "text"}} for name in (ORDERS, ITEMS))


@pytest.fixture
def events(tmp_path: Path, store_url: str) -> EventFolder:
    events = EventFolder(folder=tmp_path, store_url=store_url, tables=TABLES, more={"slice_length": "1s"})
    events.write("0/a.jsonl", debezium_event(ORDERS, 1, "first"))
    events.write("1/a.jsonl", debezium_event(ITEMS, 1, "first"))
    return events


@contextmanager
def sharing(events: EventFolder, *owners: str) -> Iterator[list[Consumer]]:
    """One consumer per owner, each with its share."""
    with ExitStack() as opened, events.set_up() as pipeline:
        members = [Membership(store=pipeline.store, stream="shop", owner=owner) for owner in owners]
        for each in members:
            each.keep_alive()
        opening = pipeline.consumer_runs().opening
        yield [opened.enter_context(replace(opening, owner=each.owner).opened(each.take)) for each in members]
        for owner in owners:
            pipeline.store.consumers.leave("shop", owner=owner)


def read_all(consumer: Consumer) -> None:
    marker = consumer.send_marker()
    stream_to_slices(consumer, lambda: consumer.has_registered_through(marker))


def notes(events: EventFolder, table: str) -> dict[int, str]:
    return {row["id"]: row["note"] for row in events.rows(table)}


def test_two_consumers_read_a_folder_each_and_see_that_one_is_new(events: EventFolder) -> None:
    with sharing(events, "one", "two") as consumers:
        for each in consumers:
            read_all(each)
        with events.opened() as pipeline:
            shown = pipeline.store.inspection.run("partitions")
        assert [(row["partition"], row["assignment_owner"]) for row in shown] == [
            ("folder 0", "one"),
            ("folder 1", "two"),
        ]
        events.write("2/a.jsonl", debezium_event(ORDERS, 2, "new"))
        with pytest.raises(SourceChanged, match="the stream partition 2 is new"):
            stream_to_slices(consumers[0], lambda: False)
    events.consume()
    assert (notes(events, ORDERS), notes(events, ITEMS)) == ({1: "first", 2: "new"}, {1: "first"})


def test_a_folder_that_cannot_be_read_stops_alone_and_its_table_says_why(events: EventFolder) -> None:
    events.consume()
    events.write("0/a.jsonl", debezium_event(ORDERS, 2, "unread"))
    damaged = events.folder / "events" / "0" / "a.jsonl"
    damaged.write_bytes(damaged.read_bytes().replace(b"first", b"other"))
    with events.opened() as pipeline, pytest.raises(PartitionFailed, match="has other first 1 lines"):
        pipeline.consumer_runs().consume_until_idle()
    events.write("1/a.jsonl", debezium_event(ITEMS, 2, "later"))
    stop = Event()
    with events.opened() as pipeline:

        def stop_when_read() -> None:
            slices = pipeline.store.inspection.run("slices")
            if sum(row["rows"] for row in slices if row["source_table"] == f"shop.{ITEMS}") == 2:
                stop.set()

        pipeline.consumer_runs().consume(stop, stop_when_read)
        reasons = {row["source_table"]: row["reason"] for row in pipeline.store.inspection.run("lag")}
    assert notes(events, ITEMS) == {1: "first", 2: "later"}
    assert reasons[f"shop.{ITEMS}"] is None or "folder 0" not in reasons[f"shop.{ITEMS}"]
    assert "folder 0 is not read: PartitionFailed: " in reasons[f"shop.{ORDERS}"]


def test_an_export_has_the_columns_of_all_folders_though_the_one_that_is_behind_was_read_last(
    tmp_path: Path, store_url: str
) -> None:
    """Later events would bring a column that was left out, with NULL in every exported row."""
    name, of = TableName.parse("shop.public.t"), {"id": {"type": "int32"}, "n": {"type": "int32"}}
    events = EventFolder(folder=tmp_path, store_url=store_url, tables=({"name": "public.t", "id": ["id"]},))
    now = create(1, 1) | {"after": {"id": 1, "n": 1, "note": "event"}}
    events.write("0/a.jsonl", with_fields({**of, "n": {"type": "int64"}, "note": {"type": "string"}}, now))
    events.write("1/a.jsonl", with_fields(of, create(2, 2)))
    (tmp_path / "export.jsonl").write_text('{"id": 3, "n": 3000000000, "note": "exported"}\n')
    with sharing(events, "one", "two") as consumers:
        for each in consumers:
            read_all(each)
    with events.opened(make_lake) as pipeline:
        (taken,) = take_snapshot(pipeline, [name], export=export_at(str(tmp_path / "export.jsonl"), "start"))
        assert (taken.state, pipeline.store.snapshot_history.withheld(taken.snapshot_id)) == ("published", 0)
        apply_all(pipeline)
        found = [(row["id"], row["n"], row.get("note")) for row in lake_rows(pipeline, name)]
    assert found == [(1, 1, "event"), (2, 2, None), (3, 3_000_000_000, "exported")]
