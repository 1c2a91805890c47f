"""A table that pipeline.yml lists, and whose stream or registration comes after the others are read."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc_pipeline.errors import SourceError, StreamMoved
from cdc_pipeline.operations.source_setup.sharing import Membership
from cdc_pipeline.record import TableName
from tests.support.shards import MemoryStreams, ShardFeed, debezium_event

ORDERS, RETURNS = "public.orders", "public.returns"


def declared(*names: str) -> tuple[Mapping[str, Any], ...]:
    return tuple({"name": name, "id": ["id"], "columns": {"id": "int", "note": "text"}} for name in names)


@pytest.fixture
def feed(tmp_path: Path, store_url: str) -> ShardFeed:
    return ShardFeed(folder=tmp_path, store_url=store_url, tables=declared(ORDERS, RETURNS), streams=MemoryStreams())


def test_a_stream_that_appears_later_waits_for_the_set_up_and_stops_nobody(feed: ShardFeed) -> None:
    feed.write(ORDERS, 1, "a")
    assert feed.set_up().refused.keys() == {TableName.parse(f"shop.{RETURNS}")}
    feed.go_on()
    feed.write(RETURNS, 1, "first")
    feed.write(ORDERS, 2, "b")
    feed.go_on()
    feed.write(RETURNS, 2, "second")
    feed.write(ORDERS, 3, "c")
    feed.go_on()
    assert feed.notes(ORDERS) == {1: "a", 2: "b", 3: "c"}
    assert feed.set_up().refused == {}
    feed.go_on()
    assert feed.notes(RETURNS) == {1: "first", 2: "second"}


def test_a_consumer_that_runs_opens_again_when_the_table_is_registered(feed: ShardFeed) -> None:
    feed.write(ORDERS, 1, "a")
    feed.consume()
    feed.write(RETURNS, 1, "first")
    with feed.opened() as pipeline:
        membership = Membership(store=pipeline.store, stream="shop", owner="one")
        with pipeline.consumer_runs().opening.opened(membership.take) as consumer:
            consumer.check_tables()
            feed.set_up()
            with pytest.raises(StreamMoved, match=r"shop\.public\.returns was registered meanwhile"):
                consumer.check_tables()


def test_a_stream_of_several_tables_is_not_read_until_all_are_registered(feed: ShardFeed) -> None:
    together = replace(feed, source={"stream": "shop"})
    alone = replace(together, tables=declared(ORDERS))
    feed.streams.put("shop", debezium_event(ORDERS, 1, "a"))
    alone.consume()
    feed.streams.put("shop", debezium_event(RETURNS, 1, "first"))
    with pytest.raises(SourceError, match=r"shop\.public\.returns is not registered, and shop has events"):
        together.go_on()
    together.consume()
    assert together.notes(RETURNS) == {1: "first"}


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("name", ["shop", "{schema}.{table}"])
def test_a_new_table_in_a_stream_that_is_read_already_is_warned_of(
    feed: ShardFeed, name: str, *, is_read: bool
) -> None:
    both = replace(feed, source={"stream": name})
    alone = replace(both, tables=declared(ORDERS))
    for table in (ORDERS, RETURNS):
        feed.streams.put("shop" if name == "shop" else table, debezium_event(table, 1, "first"))
    alone.set_up()
    if is_read:
        alone.go_on()
    with capture_logs() as logs:
        for _ in range(2):
            both.consume()
    found = [(each["table"], each["found"]) for each in logs if "begins in the middle" in each["event"]]
    is_passed_over = is_read and name == "shop"
    warned = (f"shop.{RETURNS}", "shop, which was read without it so far")
    assert found == ([warned] if is_passed_over else [])
    assert both.notes(RETURNS) == ({} if is_passed_over else {1: "first"})
