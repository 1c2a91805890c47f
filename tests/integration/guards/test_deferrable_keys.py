"""A table whose id two rows may share within a transaction is refused: the order of its events would lose rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.consume.stream_to_slices import stream_to_slices_until_idle
from cdc_pipeline.errors import SourceError, StreamMoved
from tests.crash.world import World
from tests.support.guarded import CREATE, begin_again, go_on, in_lake, in_source, name_of, world_of
from tests.support.streams import run_sql

LATE = "CREATE TABLE orders (id int PRIMARY KEY DEFERRABLE, note text)"
FULL = "ALTER TABLE orders REPLICA IDENTITY FULL"
BY_ID = ({"name": "public.orders"},)
REFUSED: dict[str, tuple[Sequence[str], Sequence[dict[str, Any]]]] = {
    "a deferrable primary key": ((LATE,), BY_ID),
    "a deferrable primary key and whole old rows": ((LATE, FULL), BY_ID),
    "a deferrable constraint on a part of the id": ((LATE, FULL), ({"name": "public.orders", "id": ["id", "note"]},)),
    "a deferrable constraint beside a unique index of some rows": (
        (LATE, FULL, "CREATE UNIQUE INDEX of_some ON orders (id) WHERE id > 0"),
        BY_ID,
    ),
    "a partitioned table with a deferrable primary key": (
        (LATE + " PARTITION BY RANGE (id)", "CREATE TABLE low PARTITION OF orders DEFAULT", FULL),
        BY_ID,
    ),
}
READ: dict[str, tuple[Sequence[str], Sequence[dict[str, Any]]]] = {
    "a unique index beside it": ((LATE, FULL, "CREATE UNIQUE INDEX by_id ON orders (id) INCLUDE (note)"), BY_ID),
    "an id of other columns": (
        ("CREATE TABLE orders (id int PRIMARY KEY DEFERRABLE, note text UNIQUE)", FULL),
        ({"name": "public.orders", "id": ["note"]},),
    ),
}
WORDS = "only a deferrable constraint makes id"
MAKE_LATE = "ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD CONSTRAINT orders_pkey PRIMARY KEY (id) DEFERRABLE"
SHARED = "UPDATE orders SET id = id + 1"


def printed(world: World) -> tuple[str, ...]:
    with world.process() as pipeline:
        return pipeline.source_setup().missing_sql()


@pytest.mark.parametrize("kind", REFUSED)
def test_set_up_refuses_a_table_whose_id_rows_may_share_and_prints_nothing_that_would_publish_it(
    kind: str, database: str, store_url: str, tmp_path: Path
) -> None:
    statements, tables = REFUSED[kind]
    run_sql(database, *statements)
    world = world_of(tmp_path, database, store_url, tables)
    with world.process() as pipeline, pytest.raises(SourceError, match=WORDS) as refused:
        pipeline.source_setup().set_up()
    assert "create a unique index on id" in (refused.value.remedy or "")
    assert world.query("SELECT count(*) FROM pg_publication") == [(0,)]
    assert [line for line in printed(world) if "orders" in line] == []


@pytest.mark.parametrize("kind", READ)
def test_a_table_with_another_key_that_is_checked_with_each_row_is_read(
    kind: str, database: str, store_url: str, tmp_path: Path
) -> None:
    statements, tables = READ[kind]
    run_sql(database, *statements, "INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    world = world_of(tmp_path, database, store_url, tables)
    begin_again(world)
    run_sql(database, "UPDATE orders SET id = 3 WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    assert go_on(world) == {}
    assert in_lake(world, "orders") == in_source(world, "orders")


def test_a_running_table_stops_alone_once_rows_may_share_its_id_and_goes_on_with_a_unique_index(
    database: str, store_url: str, tmp_path: Path
) -> None:
    run_sql(database, *CREATE, FULL)
    world = world_of(tmp_path, database, store_url)
    begin_again(world)
    with world.process() as pipeline, pipeline.consumer_runs().open() as consumer:
        run_sql(database, f"BEGIN; {MAKE_LATE}; {SHARED}; COMMIT", "INSERT INTO customers VALUES (4, 'four')")
        with pytest.raises(StreamMoved):
            stream_to_slices_until_idle(consumer)
    stopped = go_on(world)
    assert list(stopped) == ["orders"]
    assert WORDS in stopped["orders"]
    assert in_lake(world, "orders") == [{"id": 1, "note": "one"}, {"id": 2, "note": "two"}]
    assert in_lake(world, "customers") == in_source(world, "customers")
    run_sql(
        database,
        "CREATE UNIQUE INDEX by_id ON orders (id)",
        "ALTER TABLE orders REPLICA IDENTITY USING INDEX by_id",
    )
    begin_again(world, [name_of(world, "orders")])
    run_sql(database, "UPDATE orders SET id = 9 WHERE id = 2")
    assert go_on(world) == {}
    assert in_lake(world, "orders") == in_source(world, "orders")
