"""What a stream of several partitions, read from files, remembers for its next reader."""

from collections.abc import Iterator
from dataclasses import replace

import psycopg2.extensions
import pytest
from sqlalchemy import event

from cdc_pipeline.errors import SourceChanged, StaleEpoch, StreamMoved
from cdc_pipeline.record import PARTITION_ENDED, encode_position
from tests.support.metadata_store import STREAM, Shop, opened_shop

ENDED = {PARTITION_ENDED: ""}


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    with opened_shop(database) as shop:
        yield shop


def test_what_a_cut_leaves_for_the_next_reader_is_there_when_the_stream_is_taken(shop: Shop) -> None:
    ranges = shop.cut(0, 5, {}).partitions
    left = tuple(replace(part, last_position={"shop.public.orders": "00ff"}) for part in ranges)
    shop.register(replace(shop.cut(0, 5, {}), partitions=left))
    assignment = shop.store.streams.take_stream("shop", owner="next", first_offset=encode_position(0))
    assert assignment.last_position == {number: {"shop.public.orders": "00ff"} for number in (0, 1)}


def test_a_stream_whose_partitions_were_all_read_to_their_ends_can_be_taken(shop: Shop) -> None:
    ranges = shop.cut(0, 5, {}).partitions
    shop.register(replace(shop.cut(0, 5, {}), partitions=tuple(replace(each, last_position=ENDED) for each in ranges)))
    assignment = shop.store.streams.take_stream("shop", owner="next", first_offset=encode_position(0))
    assert assignment.last_position == {0: ENDED, 1: ENDED}


def test_files_are_numbered_in_the_order_in_which_they_are_begun(shop: Shop) -> None:
    files = shop.store.source_files
    assignment = shop.store.streams.take_stream("shop", owner="next", first_offset=encode_position(0))
    begun = [files.begin_file(assignment, *file) for file in ((0, "a"), (0, "b"), (1, "a"), (0, "a"))]
    assert begun == [1, 2, 1, 1]
    assert files.begun_files("shop") == {0: {1: "a", 2: "b"}, 1: {1: "a"}}


def test_any_number_of_begun_files_is_read_without_a_long_pause_in_the_transaction(shop: Shop) -> None:
    """The server sends them batch by batch, as they are asked for."""
    cursors: list[str | None] = []

    @event.listens_for(shop.engine, "before_cursor_execute")
    def note(_c: object, cursor: psycopg2.extensions.cursor, _s: object, _p: object, _o: object, _many: object) -> None:
        cursors.append(cursor.name)

    shop.store.source_files.begun_files("shop")
    assert None not in cursors


def test_a_consumer_that_lost_the_stream_begins_no_file(shop: Shop) -> None:
    assignment = shop.store.streams.take_stream("shop", owner="first", first_offset=encode_position(0))
    shop.store.streams.take_stream("shop", owner="second", first_offset=encode_position(0))
    with pytest.raises(StaleEpoch, match="belongs to second"):
        shop.store.source_files.begin_file(assignment, 0, "a")
    assert shop.store.source_files.begun_files("shop") == {}


def test_a_stream_takes_new_partitions_in_and_misses_none(shop: Shop) -> None:
    shop.store.streams.extend_stream(STREAM, {0: "", 1: "", 4: "orders [4]"}, surveyed_all=False)
    assignment = shop.store.streams.take_stream("shop", owner="next", first_offset=encode_position(9))
    assert assignment.next_offset == {0: encode_position(0), 1: encode_position(0), 4: encode_position(9)}
    with pytest.raises(SourceChanged, match="no stream partition 1 any more"):
        shop.store.streams.extend_stream(STREAM, {0: "", 4: ""}, surveyed_all=False)
    with pytest.raises(StreamMoved, match="the stream partition 1 of the stream shop was registered meanwhile"):
        shop.store.streams.extend_stream(STREAM, {0: "", 4: ""}, surveyed_all=True)
