"""A consumer that ends right after a cut that a change of columns causes, or before it has noted the change's end."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from cdc_pipeline.consume.consumer import Consumer
from cdc_pipeline.consume.slice_cutter import CUT_AT, CutSlices
from cdc_pipeline.consume.stream_to_slices import stream_to_slices_until_idle
from tests.crash.world import World
from tests.support.eventually import eventually
from tests.support.guarded import go_on, guarded_world, in_lake, in_source, states
from tests.support.streams import run_sql

FOLLOWED = "ALTER TABLE orders ADD COLUMN size int DEFAULT 7"
WRITE = "UPDATE customers SET note = note || '.'"
MARK = f"SELECT pg_logical_emit_message(true, 'cdc_pipeline', '{CUT_AT}{{:016x}}:1')"


@pytest.fixture
def world(database: str, store_url: str, tmp_path: Path) -> Iterator[World]:
    """Whose table `orders` has changed, as no consumer has seen yet."""
    with guarded_world(tmp_path, database, store_url) as world:
        run_sql(database, WRITE, FOLLOWED)
        yield world


def end_of_log(world: World) -> int:
    ((position,),) = world.query("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
    return int(position)


def registered(consumer: Consumer) -> Iterator[CutSlices]:
    """The cuts of one read, each of them registered, and nothing done that comes after that."""
    for cut in consumer.read_cuts():
        ranges = consumer.offset_ranges(cut)
        consumer.decide_and_register(cut, ranges, consumer.write_slice_files(cut, ranges))
        yield cut


def at_least(count: int, consumer: Consumer) -> list[CutSlices]:
    """The first cuts of the stream, no more than `count` of one read."""
    found: list[CutSlices] = []

    def read() -> bool:
        found.extend(islice(registered(consumer), count))
        return len(found) >= count

    assert eventually(read)
    return found


def check_equal(world: World) -> None:
    assert go_on(world) == {}
    assert states(world) == {"orders": ("live", None), "customers": ("live", None)}
    for table in ("orders", "customers"):
        assert in_lake(world, table) == in_source(world, table)


def test_the_stream_goes_on_after_a_cut_where_no_transaction_ends(world: World) -> None:
    with world.process() as pipeline, pipeline.consumer_runs().open() as consumer:
        run_sql(world.source_url, WRITE)
        (cut,) = at_least(1, consumer)
    check_equal(world)
    assert cut.requested


def test_a_request_that_comes_again_does_not_end_a_change_without_its_slice(world: World) -> None:
    """The consumer dies once the requested cut behind the change is registered; it is confirmed to nobody."""
    with world.process() as pipeline, pipeline.consumer_runs().open() as consumer:
        run_sql(world.source_url, WRITE)
        position = end_of_log(world)
        run_sql(world.source_url, MARK.format(position))
        _, cut = at_least(2, consumer)
    assert (cut.end, cut.requested) == (position, True)
    check_equal(world)
    assert all("size" in row for row in in_lake(world, "orders"))


def test_columns_whose_change_has_ended_do_not_come_back_by_a_difference_without_effect(world: World) -> None:
    """They would make a column that is added again look like the one that was dropped long ago."""
    run_sql(world.source_url, "ALTER TABLE customers DROP note")
    with world.process() as pipeline, pipeline.consumer_runs().open() as consumer:
        stream_to_slices_until_idle(consumer)
        run_sql(world.source_url, "VACUUM FULL customers")
        stream_to_slices_until_idle(consumer)
    run_sql(world.source_url, "ALTER TABLE customers ADD note text", "INSERT INTO customers VALUES (4, 'later')")
    check_equal(world)
