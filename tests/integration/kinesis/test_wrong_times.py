"""An event whose time is far in the future, as a producer with a wrong clock or a wrong unit writes it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cdc_pipeline.record import COMMIT_TIME, TableName
from tests.support.event_files import events_of
from tests.support.shards import MemoryStreams, ShardFeed, debezium_event

ORDERS, ITEMS = "public.orders", "public.items"
YEAR_8973 = 221_000_000_000_000
SOON = timedelta(hours=2)


def test_a_time_of_the_far_future_spoils_no_label_and_no_watermark(tmp_path: Path, store_url: str) -> None:
    tables = tuple({"name": name, "id": ["id"], "columns": {"id": "int", "note": "text"}} for name in (ORDERS, ITEMS))
    feed = ShardFeed(folder=tmp_path, store_url=store_url, tables=tables, streams=MemoryStreams())
    feed.streams.put(ORDERS, debezium_event(ORDERS, 1, "a") | {"ts_ms": YEAR_8973})
    feed.write(ITEMS, 1, "a")
    feed.consume()
    feed.write(ITEMS, 2, "b")
    feed.go_on()
    soon = datetime.now(UTC) + SOON
    assert all(row["label_start"] < soon and row["commit_time"] < soon for row in feed.shown("slices"))
    assert all(
        row["watermark"] < soon and row["seconds_behind"] > -SOON.total_seconds() for row in feed.shown("partitions")
    )
    with feed.opened() as pipeline:
        (event,) = events_of(pipeline, TableName.parse(f"shop.{ORDERS}"))
    assert event[COMMIT_TIME].year == 8973
