"""Tables that inherit from a table of the pipeline: neither set-up nor removal touches them."""

from pathlib import Path

import pytest

from tests.crash.world import World
from tests.support.guarded import begin_again, go_on, in_lake, in_source, name_of, world_of
from tests.support.streams import run_sql

PUBLISHED = "SELECT tablename::text FROM pg_publication_tables ORDER BY tablename"
REGULAR, URGENT = {"name": "public.orders"}, {"name": "public.urgent"}
WRITE = ("UPDATE orders SET note = note || '.'", "DELETE FROM orders WHERE id > 10")


@pytest.fixture
def inherited(database: str) -> str:
    """The table `late` has no key, so PostgreSQL would refuse its updates and deletes if it were published."""
    run_sql(
        database,
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "CREATE TABLE urgent (PRIMARY KEY (id)) INHERITS (orders)",
        "CREATE TABLE late () INHERITS (orders)",
        "INSERT INTO orders VALUES (1, 'a')",
        "INSERT INTO urgent VALUES (2, 'b')",
        "INSERT INTO late VALUES (3, 'c'), (11, 'd')",
    )
    return database


@pytest.mark.parametrize("publication", ["made", "there", "made whole"])
def test_set_up_publishes_no_table_that_inherits_from_a_listed_one(
    publication: str, inherited: str, store_url: str, tmp_path: Path
) -> None:
    world = world_of(tmp_path, inherited, store_url, [REGULAR])
    if publication != "made":
        holds = "" if publication == "there" else " FOR TABLE ONLY orders WHERE (id > 9)"
        run_sql(inherited, f'CREATE PUBLICATION "{name_of(world, "").database}"{holds}')
        with world.process() as pipeline:
            run_sql(inherited, *pipeline.source_setup().missing_sql())
    begin_again(world)
    assert world.query(PUBLISHED) == [("orders",)]
    run_sql(inherited, *WRITE)
    assert go_on(world) == {}
    assert in_lake(world, "orders") == in_source(world, "ONLY orders") == [{"id": 1, "note": "a."}]


def test_set_up_publishes_all_partitions_of_a_listed_table(database: str, store_url: str, tmp_path: Path) -> None:
    world = world_of(tmp_path, database, store_url, [REGULAR])
    run_sql(
        database,
        "CREATE TABLE orders (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (10)",
    )
    begin_again(world)
    run_sql(
        database,
        "CREATE TABLE high PARTITION OF orders DEFAULT",
        "INSERT INTO orders VALUES (1, 'a'), (11, 'b')",
        "UPDATE orders SET note = note || '.'",
    )
    assert go_on(world) == {}
    assert in_lake(world, "orders") == in_source(world, "orders")


def test_a_listed_table_stays_published_when_the_one_that_it_inherits_from_is_removed(
    inherited: str, store_url: str, tmp_path: Path
) -> None:
    world = world_of(tmp_path, inherited, store_url, [REGULAR, URGENT])
    begin_again(world)
    assert world.query(PUBLISHED) == [("orders",), ("urgent",)]
    left = world_of(tmp_path, inherited, store_url, [URGENT])
    removed(left)
    assert world.query(PUBLISHED) == [("urgent",)]
    run_sql(inherited, *WRITE)
    assert go_on(left) == {}
    assert in_lake(left, "urgent") == in_source(left, "urgent")


def removed(world: World) -> None:
    """What `cdc remove` does on the source, by a role that may do it itself."""
    with world.process() as pipeline:
        assert pipeline.source.leave([name_of(world, "orders")], whole=False) == ()
