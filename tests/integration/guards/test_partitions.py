"""A table stops, or is refused, if a partition or a policy of the source would keep rows or ids from the pipeline."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from cdc_pipeline.consume.stream_to_slices import stream_to_slices_until_idle
from cdc_pipeline.errors import SourceError, StreamMoved
from cdc_pipeline.sources.postgres.session import session
from tests.support.guarded import begin_again, go_on, in_lake, in_source, name_of, world_of
from tests.support.streams import run_sql

PARTED = (
    "CREATE TABLE orders (id int PRIMARY KEY, email text NOT NULL, note text) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (1000)",
)
HIGH = "CREATE TABLE high PARTITION OF orders FOR VALUES FROM (1000) TO (2000)"
FULL = ("ALTER TABLE orders REPLICA IDENTITY FULL", "ALTER TABLE low REPLICA IDENTITY FULL")
BY_EMAIL = ({"name": "public.orders", "id": ["email"]},)
BY_ID = ({"name": "public.orders"},)
WHOLE = "an id within the table's replica identity, and that of each of its partitions"
REFUSED: dict[str, tuple[Sequence[str], Sequence[dict[str, Any]], str, str]] = {
    "a partition that keeps its own replica identity": (
        (*PARTED, FULL[0]),
        BY_EMAIL,
        "deletes of the partition public.low of {table} do not carry email",
        "run ALTER TABLE public.low REPLICA IDENTITY FULL, or USING",
    ),
    "a partition by the index of another column": (
        (
            *PARTED,
            "CREATE UNIQUE INDEX by_email ON low (email)",
            "ALTER TABLE low REPLICA IDENTITY USING INDEX by_email",
        ),
        BY_ID,
        "deletes of the partition public.low of {table} do not carry id",
        "run ALTER TABLE public.low REPLICA IDENTITY FULL, or USING",
    ),
    "a partition without a replica identity": (
        (*PARTED, "ALTER TABLE low REPLICA IDENTITY NOTHING"),
        BY_ID,
        "the server refuses updates and deletes of the partition public.low of {table} once it is published",
        "run ALTER TABLE public.low REPLICA IDENTITY FULL, or USING",
    ),
    "a primary key that is checked at the commit": (
        ("CREATE TABLE orders (id int PRIMARY KEY DEFERRABLE, note text)",),
        BY_ID,
        "only a deferrable constraint makes id of {table} unique: rows may share it within a transaction",
        "make that constraint NOT DEFERRABLE; or create a unique index on id",
    ),
    "a table without an id of which only the partition shows whole rows": (
        ("CREATE TABLE orders (id int, note text) PARTITION BY RANGE (id)", PARTED[1], FULL[1]),
        BY_ID,
        "the table {table} has no id, and its updates and deletes do not carry the whole row",
        "run ALTER TABLE public.orders REPLICA IDENTITY FULL",
    ),
    "an unlogged partition": (
        (PARTED[0], "CREATE UNLOGGED TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (1000)"),
        BY_ID,
        "changes of public.low are not in the server's log: unlogged tables",
        "run ALTER TABLE ... SET LOGGED",
    ),
    "a partition on another server": (
        (
            PARTED[0].replace("int PRIMARY KEY", "int NOT NULL"),
            "ALTER TABLE orders REPLICA IDENTITY FULL",
            "CREATE FOREIGN DATA WRAPPER wrapper",
            "CREATE SERVER elsewhere FOREIGN DATA WRAPPER wrapper",
            "CREATE FOREIGN TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (1000) SERVER elsewhere",
        ),
        BY_ID,
        "changes of public.low are not in the server's log: foreign tables",
        "run ALTER TABLE ... DETACH PARTITION, or list the table on the server that has its rows",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_set_up_refuses_a_table_whose_updates_and_deletes_would_hide_rows(
    kind: str, database: str, store_url: str, tmp_path: Path
) -> None:
    statements, tables, found, remedy = REFUSED[kind]
    run_sql(database, *statements)
    world = world_of(tmp_path, database, store_url, tables)
    with world.process() as pipeline, pytest.raises(SourceError) as refused:
        pipeline.source_setup().set_up()
    assert refused.value.found.startswith(found.format(table=name_of(world, "orders")))
    assert (refused.value.remedy or "").startswith(remedy)
    assert world.query("SELECT count(*) FROM pg_publication") == [(0,)]


def test_a_partitioned_table_whose_parts_show_whole_rows_follows_changes_of_its_id(
    database: str, store_url: str, tmp_path: Path
) -> None:
    run_sql(database, *PARTED, *FULL, "INSERT INTO orders VALUES (1, 'a', 'one'), (2, 'b', 'two')")
    world = world_of(tmp_path, database, store_url, BY_EMAIL)
    begin_again(world)
    run_sql(database, "UPDATE orders SET email = 'c' WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    assert go_on(world) == {}
    assert in_lake(world, "orders") == in_source(world, "orders")


def test_a_partition_that_comes_later_with_another_replica_identity_stops_the_table(
    database: str, store_url: str, tmp_path: Path
) -> None:
    run_sql(database, *PARTED, *FULL, "INSERT INTO orders VALUES (1, 'a', 'one')")
    world = world_of(tmp_path, database, store_url, BY_EMAIL)
    begin_again(world)
    run_sql(
        database,
        HIGH,
        "INSERT INTO orders VALUES (1001, 'x', 'new')",
        "UPDATE orders SET email = 'y' WHERE id = 1001",
    )
    stopped = go_on(world)["orders"]
    assert f"deletes of the partition public.high of {name_of(world, 'orders')} do not carry email" in stopped
    run_sql(database, "ALTER TABLE high REPLICA IDENTITY FULL")
    begin_again(world, [name_of(world, "orders")])
    run_sql(database, "UPDATE orders SET email = 'z' WHERE id = 1001")
    assert go_on(world) == {}
    assert in_lake(world, "orders") == in_source(world, "orders")


def test_a_partition_with_another_replica_identity_for_a_while_stops_the_table(
    database: str, store_url: str, tmp_path: Path
) -> None:
    run_sql(database, *PARTED, *FULL, "INSERT INTO orders VALUES (1, 'a', 'one'), (2, 'b', 'two')")
    world = world_of(tmp_path, database, store_url, BY_ID)
    begin_again(world)
    run_sql(
        database,
        "ALTER TABLE low ALTER note SET NOT NULL",
        "CREATE UNIQUE INDEX by_note ON low (note)",
        "ALTER TABLE low REPLICA IDENTITY USING INDEX by_note",
        "DELETE FROM orders WHERE id = 1",
        "UPDATE orders SET id = 3 WHERE id = 2",
        "ALTER TABLE low REPLICA IDENTITY FULL",
        "INSERT INTO orders VALUES (4, 'd', 'four')",
    )
    table = name_of(world, "orders")
    assert f"old rows of public.low, a partition of {table}, have only note" in go_on(world)["orders"]
    begin_again(world, [table])
    run_sql(database, "DELETE FROM orders WHERE id = 3")
    assert go_on(world) == {}
    assert in_lake(world, "orders") == in_source(world, "orders")


APPENDED: dict[str, tuple[Sequence[str], Sequence[dict[str, Any]], str]] = {
    "the index of its table is not its replica identity": (
        (
            "CREATE TABLE orders (id int NOT NULL, email text, note text) PARTITION BY RANGE (id)",
            "CREATE UNIQUE INDEX by_id ON orders (id)",
            "ALTER TABLE orders REPLICA IDENTITY USING INDEX by_id",
            PARTED[1],
            FULL[1],
        ),
        ({"name": "public.orders", "id": ["id"]},),
        "ALTER TABLE high REPLICA IDENTITY FULL",
    ),
    "rows without an id are only appended": (
        ("CREATE TABLE orders (id int, email text, note text) PARTITION BY RANGE (id)", PARTED[1], *FULL),
        BY_ID,
        "ALTER TABLE high REPLICA IDENTITY FULL",
    ),
}


@pytest.mark.parametrize("kind", APPENDED)
def test_a_partition_whose_updates_the_server_refuses_leaves_its_table_streaming(
    kind: str, database: str, store_url: str, tmp_path: Path
) -> None:
    statements, tables, mending = APPENDED[kind]
    run_sql(database, *statements, "INSERT INTO orders VALUES (1, 'a', 'one')")
    world = world_of(tmp_path, database, store_url, tables)
    begin_again(world)
    run_sql(database, HIGH, "INSERT INTO orders VALUES (1001, 'x', 'new')")
    with pytest.raises(psycopg2.Error, match="does not have a replica identity and publishes updates"):
        run_sql(database, "UPDATE orders SET email = 'y' WHERE id = 1001")
    assert go_on(world) == {}
    run_sql(database, mending, "UPDATE orders SET email = 'z' WHERE id = 1001")
    assert go_on(world) == {}
    assert in_lake(world, "orders") == in_source(world, "orders")


def test_a_running_consumer_goes_on_past_a_partition_whose_updates_the_server_refuses(
    database: str, store_url: str, tmp_path: Path
) -> None:
    statements, tables, _ = APPENDED["rows without an id are only appended"]
    run_sql(database, *statements)
    world = world_of(tmp_path, database, store_url, tables)
    begin_again(world)
    with world.process() as pipeline, pipeline.consumer_runs().open() as consumer:
        run_sql(database, HIGH, "INSERT INTO orders VALUES (1001, 'x', 'new')")
        stream_to_slices_until_idle(consumer)
    assert go_on(world) == {}
    assert in_lake(world, "orders") == in_source(world, "orders")


UNFIT: dict[str, tuple[Sequence[str], str, str]] = {
    "it is unlogged": (
        PARTED,
        HIGH.replace("TABLE", "UNLOGGED TABLE"),
        "changes of public.high are not in the server's log: unlogged tables",
    ),
    "it computes a column otherwise": (
        (PARTED[0].replace("note text", "note text, n int GENERATED ALWAYS AS (id + 1) STORED"), PARTED[1]),
        HIGH.replace("FOR", "(n GENERATED ALWAYS AS (id + 2) STORED) FOR"),
        "partitions of {table} compute n otherwise than itself",
    ),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_running_consumer_stops_its_table_at_a_new_partition_that_setup_would_refuse(
    kind: str, database: str, store_url: str, tmp_path: Path
) -> None:
    statements, create, words = UNFIT[kind]
    run_sql(database, *statements, "INSERT INTO orders VALUES (1, 'a', 'one')")
    world = world_of(tmp_path, database, store_url, BY_ID)
    begin_again(world)
    before = in_lake(world, "orders")
    with world.process() as pipeline, pipeline.consumer_runs().open() as consumer:
        run_sql(database, create, "INSERT INTO orders VALUES (1001, 'x', 'new'), (2, 'b', 'two')")
        with pytest.raises(StreamMoved):
            stream_to_slices_until_idle(consumer)
    assert words.format(table=name_of(world, "orders")) in go_on(world)["orders"]
    assert in_lake(world, "orders") == before


def test_the_first_partition_of_a_table_is_followed_and_its_last_one_is_named_when_it_goes(
    database: str, store_url: str, tmp_path: Path
) -> None:
    run_sql(database, PARTED[0])
    world = world_of(tmp_path, database, store_url, BY_ID)
    begin_again(world)
    run_sql(database, PARTED[1], "INSERT INTO orders VALUES (1, 'a', 'one')")
    assert go_on(world) == {}
    assert in_lake(world, "orders") == in_source(world, "orders") != []
    run_sql(database, "DROP TABLE low")
    assert "a partition was detached or dropped" in go_on(world)["orders"]


def test_what_is_printed_for_unlogged_tables_makes_them_ready(database: str, store_url: str, tmp_path: Path) -> None:
    """PostgreSQL publishes no unlogged table."""
    run_sql(
        database,
        "CREATE UNLOGGED TABLE customers (id int PRIMARY KEY)",
        PARTED[0],
        "CREATE UNLOGGED TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (1000)",
    )
    world = world_of(tmp_path, database, store_url)
    with world.process() as pipeline:
        run_sql(database, *pipeline.source.missing_statements(pipeline.registered_stream()))
        assert len(pipeline.source_setup().set_up().tables) == len(pipeline.table_names())


def test_a_table_whose_rows_a_policy_hides_is_refused_and_a_policy_that_comes_later_ends_a_copy(
    database: str, store_url: str, tmp_path: Path
) -> None:
    role, hidden = f"reader_of_{database.rpartition('/')[2].partition('?')[0]}", "ALTER TABLE orders ENABLE ROW LEVEL"
    run_sql(
        database,
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'",
        f"GRANT SELECT ON orders TO {role}",
        f"{hidden} SECURITY",
    )
    as_role = database.replace("//", f"//{role}:x@", 1) if "@" not in database else _as(database, role)
    world = world_of(tmp_path, as_role, store_url, BY_ID)
    with world.process() as pipeline:
        with pytest.raises(SourceError, match=r"row-level security hides rows of public\.orders"):
            pipeline.source_setup().set_up()
        assert f'ALTER ROLE "{role}" BYPASSRLS' in pipeline.source.missing_statements(pipeline.registered_stream())
    with pytest.raises(SourceError, match="would be affected by row-level security"), session(as_role) as connection:
        connection.cursor().execute("SELECT * FROM orders")
    run_sql(database, f"ALTER ROLE {role} BYPASSRLS")
    with session(as_role) as connection:
        connection.cursor().execute("SELECT * FROM orders")
    run_sql(database, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def _as(url: str, role: str) -> str:
    return "postgresql://" + f"{role}:x@" + url.partition("@")[2]
