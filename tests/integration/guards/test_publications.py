"""What a publication, a slot or the tables below a table may not hide: changes that no event of the stream shows."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_pipeline.errors import SourceBusy, SourceError
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.postgres.catalogue import rows
from cdc_pipeline.sources.postgres.session import connect
from cdc_pipeline.sources.postgres.setup import execute_plan, plan_source
from cdc_pipeline.sources.postgres.statements import adding_statement, published_tables
from cdc_pipeline.steps import no_step
from tests.crash.world import World
from tests.support.guarded import begin_again, in_lake, in_source, name_of, stopped_tables, world_of
from tests.support.streams import database_of, postgres_of, prepare, run_sql

SCHEMAS = ('CREATE SCHEMA "Big"', "CREATE SCHEMA other", 'CREATE TABLE "Big".orders (id int PRIMARY KEY)')
PUBLISH = 'CREATE PUBLICATION "{name}" FOR TABLES IN SCHEMA "Big" WITH (publish_via_partition_root = true)'
UNSEEN = {
    "the schema was taken out and put back": (
        'ALTER PUBLICATION "{name}" DROP TABLES IN SCHEMA "Big"',
        'INSERT INTO "Big".orders VALUES (2)',
        'ALTER PUBLICATION "{name}" ADD TABLES IN SCHEMA "Big"',
    ),
    "the table was in another schema": (
        'ALTER TABLE "Big".orders SET SCHEMA other',
        "INSERT INTO other.orders VALUES (2)",
        'ALTER TABLE other.orders SET SCHEMA "Big"',
    ),
}


def run(world: World, *statements: str) -> None:
    name = postgres_of(world.settings).publication
    run_sql(world.source_url, *(statement.format(name=name) for statement in statements))


@pytest.mark.parametrize("kind", UNSEEN)
def test_a_table_that_is_published_by_its_schema_stops_once_changes_of_it_were_not(
    kind: str, database: str, store_url: str, tmp_path: Path
) -> None:
    world = world_of(tmp_path, database, store_url, [{"name": "Big.orders"}])
    run(world, *SCHEMAS, PUBLISH)
    begin_again(world)
    run(world, 'INSERT INTO "Big".orders VALUES (1)')
    assert stopped_tables(world) == {}
    run(world, *UNSEEN[kind], 'INSERT INTO "Big".orders VALUES (3)')
    ((table, reason),) = stopped_tables(world).items()
    assert (table.schema, table.table) == ("Big", "orders")
    assert "was published otherwise in between: changes of it may be missing" in reason


@pytest.mark.parametrize(
    ("unseen", "reason"),
    [
        (
            ("ALTER TABLE orders SET UNLOGGED", "INSERT INTO orders VALUES (2, 'b')", "ALTER TABLE orders SET LOGGED"),
            "it may have been unlogged",
        ),
        (
            (
                "ALTER TABLE whole ATTACH PARTITION orders FOR VALUES FROM (0) TO (1000)",
                "INSERT INTO whole VALUES (2, 'b')",
                "ALTER TABLE whole DETACH PARTITION orders",
            ),
            "it may have been a partition of another table",
        ),
        (("VACUUM FULL orders", "CLUSTER orders USING orders_pkey", "TRUNCATE orders"), ""),
        (("ALTER TABLE orders ALTER note SET STATISTICS 5", "ALTER TABLE orders ALTER note SET NOT NULL"), ""),
    ],
    ids=["unlogged", "a partition", "files written anew", "a column"],
)
def test_a_table_of_a_publication_of_all_tables_that_was_out_of_it_for_a_while(
    unseen: tuple[str, ...], reason: str, database: str, store_url: str, tmp_path: Path
) -> None:
    world = world_of(tmp_path, database, store_url, [{"name": "public.orders"}])
    run(
        world,
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "CREATE TABLE whole (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        'CREATE PUBLICATION "{name}" FOR ALL TABLES WITH (publish_via_partition_root = true)',
    )
    begin_again(world)
    run(world, "INSERT INTO orders VALUES (1, 'a')")
    assert stopped_tables(world) == {}
    run(world, *unseen, "INSERT INTO orders VALUES (3, 'c')")
    stopped = list(stopped_tables(world).values())
    assert (len(stopped), reason in "".join(stopped)) == (1 if reason else 0, True)
    if reason:
        begin_again(world)
    assert in_lake(world, "orders") == in_source(world, "orders")


def test_a_publication_that_holds_more_than_the_pipelines_tables_stays(
    database: str, store_url: str, tmp_path: Path
) -> None:
    world = world_of(tmp_path, database, store_url, [{"name": "Big.orders"}])
    run(world, *SCHEMAS, PUBLISH)
    begin_again(world)
    with world.process() as pipeline:
        ours = [TableName(database=name_of(world, "orders").database, schema="Big", table="orders")]
        assert pipeline.source.leave(ours, whole=True) == ()
    assert world.query("SELECT count(*) FROM pg_publication") == [(1,)]
    assert world.query("SELECT count(*) FROM pg_replication_slots WHERE slot_name = current_database()") == [(0,)]


def test_a_table_that_is_locked_to_be_published_waits_for_who_has_written_it(database: str) -> None:
    """Also for one who writes a partition without its table."""
    name = TableName(database=database_of(database), schema="public", table="it's $$ \\ here")
    run_sql(
        database,
        f'CREATE TABLE "{name.table}" (id int PRIMARY KEY) PARTITION BY RANGE (id)',
        f'CREATE TABLE low PARTITION OF "{name.table}" FOR VALUES FROM (0) TO (1000)',
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    source, plan = prepare(database, [TableSettings(name=f"{name.database}.public.other")])
    with closing(connect(database)) as connection, closing(connect(database)) as writer, writer.cursor() as cursor:
        add = adding_statement(connection, source.publication, name, locks=True)
        adding = replace(plan, statements=(add,), adding={add: name})
        cursor.execute("INSERT INTO low VALUES (1)")
        with pytest.raises(SourceBusy, match="lock timeout"):
            execute_plan(connection, adding, no_step)
        assert published_tables(connection, source) == {("public", "other")}
        writer.commit()
        assert execute_plan(connection, adding, no_step).statements == (add,)
        assert published_tables(connection, source) == {("public", "other"), ("public", name.table)}
        assert rows(connection, "SHOW lock_timeout") == [("0",)]


def test_a_table_that_stays_in_use_keeps_no_other_out_of_the_publication(database: str) -> None:
    run_sql(database, *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("first", "busy", "idle")))
    first, busy, idle = (
        TableSettings(name=f"{database_of(database)}.public.{name}") for name in ("first", "busy", "idle")
    )
    source, _ = prepare(database, [first])
    with closing(connect(database)) as connection, closing(connect(database)) as writer, writer.cursor() as cursor:
        connection.autocommit = True
        plan = plan_source(connection, source, [first, busy, idle])
        cursor.execute("LOCK TABLE busy")
        with connection.cursor() as waiting:
            waiting.execute("SET lock_timeout = '1ms'")
        refused = execute_plan(connection, plan, no_step).refused
        assert {name: type(error) for name, error in refused.items()} == {busy.table: SourceBusy}
        assert published_tables(connection, source) == {("public", "first"), ("public", "idle")}


def test_a_slot_that_sends_transactions_before_they_commit_is_refused(
    database: str, store_url: str, tmp_path: Path
) -> None:
    world = world_of(tmp_path, database, store_url, [{"name": "public.orders"}])
    slot = postgres_of(world.settings).slot
    run(
        world,
        "CREATE TABLE orders (id int PRIMARY KEY)",
        f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', false, true)",
    )
    with world.process() as pipeline, pytest.raises(SourceError, match="sends prepared transactions"):
        pipeline.source_setup().set_up()
    run(world, f"SELECT pg_drop_replication_slot('{slot}')")


def test_rows_of_tables_that_inherit_from_a_table_are_not_copied_with_it(
    database: str, store_url: str, tmp_path: Path
) -> None:
    world = world_of(tmp_path, database, store_url, [{"name": "public.orders"}])
    run(
        world,
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE urgent () INHERITS (orders)",
        "INSERT INTO orders VALUES (1)",
        "INSERT INTO urgent VALUES (2)",
    )
    begin_again(world)
    run(world, "INSERT INTO orders VALUES (3)", "INSERT INTO urgent VALUES (4)")
    assert stopped_tables(world) == {}
    assert in_lake(world, "orders") == in_source(world, "ONLY orders") == [{"id": 1}, {"id": 3}]
    with world.process() as pipeline:
        name, known = name_of(world, "orders"), pipeline.registered_stream().tables()[name_of(world, "orders")]
        assert known.schema is not None
        with pipeline.source.hold_position("test", name="x") as held, pipeline.source.copy_at(held.exported) as copy:
            whole = [row for batch in copy.rows(name, known.schema) for row in batch.rows.to_pylist()]
    assert whole == [{"id": 1}, {"id": 3}]
