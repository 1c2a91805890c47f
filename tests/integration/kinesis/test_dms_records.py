"""Records of AWS DMS in the shards of a stream: rows of their tables, in the order of their times across shards."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.sources.debezium.envelope import LAST_TIME, EnvelopeEvent
from cdc_pipeline.sources.debezium.versions import source_position
from cdc_pipeline.sources.kinesis.dms import dms_event
from tests.support.shards import MemoryStreams, ShardFeed

ORDERS = "public.orders"
TABLE = {"name": ORDERS, "id": ["id"], "columns": {"id": "int", "note": "text"}}


def dms(operation: str, data: dict[str, Any] | None, *more: tuple[str, Any]) -> dict[str, Any]:
    metadata = {
        "timestamp": "2026-01-01T10:00:00.123456Z",
        "record-type": "data",
        "operation": operation,
        "partition-key-type": "primary-key",
        "schema-name": "public",
        "table-name": "orders",
    }
    return {"data": data, "metadata": metadata | dict(more)}


def dms_feed(folder: Path, store_url: str, table: Mapping[str, Any] = TABLE, *more: Mapping[str, Any]) -> ShardFeed:
    """One stream with all tables, as AWS DMS writes it; `table` and `more` are listed."""
    source = {"format": "dms", "stream": "task"}
    return ShardFeed(folder=folder, store_url=store_url, tables=(table, *more), streams=MemoryStreams(), source=source)


def test_records_of_dms_are_rows_of_their_tables(tmp_path: Path, store_url: str) -> None:
    feed = dms_feed(tmp_path, store_url)
    for record in (
        dms("create-table", None, ("record-type", "control")),
        dms("load", {"id": 1, "note": "loaded"}),
        dms("load", {"id": 2, "note": "loaded"}),
        dms("insert", {"id": 3, "note": None}, ("transaction-id", 7)),
        dms("update", {"id": 1, "note": "changed"}, ("transaction-id", 7)),
        dms("delete", {"id": 2, "note": "loaded"}),
        {**dms("update", {"id": 4, "note": "moved"}), "before-image": {"id": 3}},
        dms("insert", {"id": 5, "note": "gone"}),
        {**dms("delete", {"id": 5, "note": "gone"}), "before-image": {"id": None, "note": None}},
        dms("insert", {"id": 9}, ("table-name", "elsewhere")),
        dms("upsert", {"id": 9}),
    ):
        feed.streams.put("task", record)
    feed.consume()
    assert feed.notes(ORDERS) == {1: "changed", 4: "moved"}
    (kept,) = feed.shown("quarantine")
    assert "unknown operation 'upsert'" in kept["reason"]


def test_bytes_of_dms_are_the_digits_behind_0x_and_digits_alone_are_quarantined(tmp_path: Path, store_url: str) -> None:
    feed = dms_feed(tmp_path, store_url, {**TABLE, "columns": {"id": "int", "note": "bytea"}})
    for number, text in enumerate(("0x010203", "0x01", "AABBCCDD", None)):
        feed.streams.put("task", dms("insert", {"id": number, "note": text}))
    feed.streams.put("task", dms("insert", {"id": 4, "note": "0x04"}))
    feed.streams.put("task", dms("delete", {"id": 4, "note": "04"}))
    feed.consume()
    assert repr(feed.notes(ORDERS)) == repr({0: b"\1\2\3", 1: b"\1", 3: None})
    (kept,) = feed.shown("quarantine")
    assert "expected 0x before them: set NoHexPrefix to false" in kept["reason"]


def test_a_truncate_of_dms_has_its_time_among_the_records_of_all_shards(tmp_path: Path, store_url: str) -> None:
    """However many records of other tables each shard had before."""
    feed = dms_feed(tmp_path, store_url)
    for _ in range(9):
        feed.streams.put("task", dms("insert", {"id": 7}, ("table-name", "elsewhere")), "shard-1")
    truncate = (("record-type", "control"), ("operation", "truncate-table"))
    for number, (shard, record) in enumerate(
        (
            ("shard-1", dms("insert", {"id": 1, "note": "gone"})),
            ("shard-0", dms("", None, *truncate)),
            ("shard-1", dms("insert", {"id": 2, "note": "gone, too"})),
            ("shard-1", dms("", None, *truncate)),
            ("shard-0", dms("insert", {"id": 3, "note": "stays"})),
        )
    ):
        record["metadata"]["timestamp"] = f"2026-01-01T10:00:0{number}Z"
        feed.streams.put("task", record, shard)
    feed.consume()
    assert feed.notes(ORDERS) == {3: "stays"}


@pytest.mark.parametrize(
    ("first", "second", "rows"),
    [
        (
            dms("", None, ("record-type", "control"), ("operation", "truncate-table")),
            dms("insert", {"id": 1, "note": "new"}),
            {1: "new"},
        ),
        (
            dms("insert", {"id": 1, "note": "old"}),
            {**dms("update", {"id": 2, "note": "moved"}), "before-image": {"id": 1}},
            {2: "moved"},
        ),
    ],
    ids=["truncate", "other id"],
)
def test_records_of_one_millisecond_in_two_shards_are_ordered_by_their_microseconds(
    first: dict[str, Any], second: dict[str, Any], rows: dict[int, str], tmp_path: Path, store_url: str
) -> None:
    """However many records of other tables the shard of the first one had before."""
    feed = dms_feed(tmp_path, store_url)
    for _ in range(9):
        feed.streams.put("task", dms("insert", {"id": 7}, ("table-name", "elsewhere")))
    for record, shard, time in ((first, "shard-0", ".123100"), (second, "shard-1", ".123900")):
        record["metadata"]["timestamp"] = f"2026-01-01T10:00:00{time}Z"
        feed.streams.put("task", record, shard)
    feed.consume()
    assert feed.notes(ORDERS) == rows


def test_a_record_is_newer_than_those_that_were_registered_with_whole_milliseconds() -> None:
    """As earlier versions did: reading goes on behind them."""
    milliseconds = LAST_TIME // 1_000
    event = dms_event(json.dumps(dms("insert", {"id": 1})).encode(), {})
    assert isinstance(event, EnvelopeEvent)
    assert source_position(event) > milliseconds


def test_a_table_of_dms_without_types_is_refused_before_the_first_run(tmp_path: Path, store_url: str) -> None:
    feed = dms_feed(tmp_path, store_url, {"name": ORDERS, "id": ["id"]})
    feed.streams.put("task", {})
    (refused,) = feed.set_up().refused.values()
    assert "needs id and columns" in str(refused)


def test_records_of_a_refused_table_do_not_stop_the_others_of_its_stream(tmp_path: Path, store_url: str) -> None:
    """Nor are they quarantined: like those of a table that is not listed, they are passed over."""
    feed = dms_feed(tmp_path, store_url, TABLE, {"name": "public.returns", "id": ["id"]})
    feed.streams.put("task", dms("insert", {"id": 1, "note": "a"}))
    feed.streams.put("task", dms("insert", {"id": 7}, ("table-name", "returns")))
    feed.streams.put("task", dms("insert", {"id": 2, "note": "b"}))
    feed.consume()
    assert (feed.notes(ORDERS), feed.shown("quarantine")) == ({1: "a", 2: "b"}, [])
