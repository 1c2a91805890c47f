"""A table of a stream without a server's slot or lock is removed: only the store shows who reads the stream."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.errors import LeaseBusy
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import Moment
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.support.shards import MemoryStreams, ShardFeed
from tests.support.streams import run_sql

ORDERS, ITEMS = "public.orders", "public.items"


def declared(*names: str) -> tuple[Mapping[str, Any], ...]:
    return tuple({"name": name, "id": ["id"], "columns": {"id": "int", "note": "text"}} for name in names)


@pytest.fixture
def feed(tmp_path: Path, store_url: str) -> ShardFeed:
    """Both tables are registered, and each has one event."""
    feed = ShardFeed(folder=tmp_path, store_url=store_url, tables=declared(ORDERS, ITEMS), streams=MemoryStreams())
    feed.write(ORDERS, 1, "a")
    feed.write(ITEMS, 1, "a")
    feed.consume()
    return feed


def without_items(feed: ShardFeed) -> ShardFeed:
    return replace(feed, tables=declared(ORDERS))


def remove_items(feed: ShardFeed) -> None:
    with without_items(feed).opened() as pipeline:
        pipeline.removal().remove_table(TableName.parse(f"shop.{ITEMS}"), with_lake=False)


def registered(feed: ShardFeed) -> list[str]:
    with feed.opened() as pipeline:
        return [row.name.table for row in pipeline.store.tables.tables()]


def test_nothing_is_removed_while_a_consumer_is_alive(feed: ShardFeed) -> None:
    with without_items(feed).opened() as pipeline:
        pipeline.store.consumers.beat("shop", owner="another", lifetime=timedelta(hours=1))
        with pytest.raises(LeaseBusy, match="the consumer another reads the stream shop"):
            remove_items(feed)
        with pytest.raises(LeaseBusy, match="the consumer another reads the stream shop"):
            pipeline.removal().remove_pipeline(with_lake=False, source_is_gone=True)
        assert registered(feed) == ["items", "orders"]
        run_sql(feed.store_url, "UPDATE cdc.consumer SET expires_at = clock_timestamp()")
        remove_items(feed)
        assert registered(feed) == ["orders"]
        assert pipeline.removal().remove_pipeline(with_lake=False).was_known


def test_nothing_is_removed_while_a_consumer_reads_until_it_is_idle(feed: ShardFeed) -> None:
    refused = list[LeaseBusy]()

    def removing(name: str, moment: Moment) -> None:
        if (name, moment) == ("registry.register", Moment.BEFORE):
            with pytest.raises(LeaseBusy, match="a consumer reads the stream shop") as error:
                remove_items(feed)
            refused.append(error.value)

    feed.write(ORDERS, 2, "b")
    feed.go_on(removing)
    assert [each.remedy for each in refused] == ["stop all consumers of the pipeline, then remove it again"]
    assert registered(feed) == ["items", "orders"]
    remove_items(feed)
    assert registered(feed) == ["orders"]


def test_a_table_whose_cut_was_decided_before_its_removal_does_not_come_back(feed: ShardFeed) -> None:
    feed.write(ORDERS, 2, "b")
    feed.write(ITEMS, 2, "b")
    with pytest.raises(Crash):
        feed.go_on(Failpoint(Site("registry.register", Moment.BEFORE, 1)))
    remove_items(feed)
    rest = without_items(feed)
    rest.write(ORDERS, 3, "c")
    rest.go_on()
    assert registered(feed) == ["orders"]
    assert rest.notes(ORDERS) == {1: "a", 2: "b", 3: "c"}


def test_a_table_that_is_removed_and_listed_again_after_a_decided_cut_is_a_new_one(feed: ShardFeed) -> None:
    feed.write(ITEMS, 2, "b")
    with pytest.raises(Crash):
        feed.go_on(Failpoint(Site("registry.register", Moment.BEFORE, 1)))
    remove_items(feed)
    feed.set_up()
    feed.write(ITEMS, 3, "c")
    feed.go_on()
    assert feed.notes(ITEMS) == {3: "c"}
