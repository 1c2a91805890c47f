"""docs/how-to/postgres-role.md: its role can do all that the pipeline does; who lacks rights gets a list of them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer, create_database
from tests.support.command_line import CommandLine, query
from tests.support.command_server import CommandServer
from tests.support.doc_pages import blocks
from tests.support.postgres import started_server
from tests.support.streams import run_sql

TABLES = (
    "CREATE TABLE orders (id int PRIMARY KEY, note text)",
    "CREATE TABLE customers (id int PRIMARY KEY, note text)",
    "INSERT INTO orders SELECT n, 'a' FROM generate_series(1, 20) AS n",
)
PASSWORD = "choose-another-one"
MISSING = [
    'ALTER ROLE "cdc_source_reader" REPLICATION;',
    'GRANT SELECT ON "public"."orders" TO "cdc_source_reader";',
    'GRANT SELECT ON "public"."customers" TO "cdc_source_reader";',
    'GRANT USAGE ON SCHEMA "hidden" TO "cdc_source_reader";',
    'GRANT SELECT ON "hidden"."log" TO "cdc_source_reader";',
    'GRANT SELECT ON "hidden"."part" TO "cdc_source_reader";',
    "ALTER TABLE public.customers REPLICA IDENTITY FULL;",
    "ALTER TABLE hidden.log REPLICA IDENTITY FULL;",
    'ALTER PUBLICATION "cdc_shop" ADD TABLE ONLY "public"."customers";',
    'ALTER PUBLICATION "cdc_shop" ADD TABLE ONLY "hidden"."log";',
    "ALTER PUBLICATION \"cdc_shop\" SET (publish = 'insert, update, delete, truncate');",
    'ALTER PUBLICATION "cdc_shop" SET (publish_via_partition_root = true);',
    'ALTER PUBLICATION "cdc_shop" DROP TABLE ONLY "public"."orders";',
    'ALTER PUBLICATION "cdc_shop" ADD TABLE ONLY "public"."orders";',
    "SELECT pg_create_logical_replication_slot('cdc_shop', 'pgoutput');",
]


def scripts() -> list[list[str]]:
    return [block.strip().split(";\n") for block in blocks("docs/how-to/postgres-role.md", "sql")]


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """Of the test's own: roles belong to a whole server."""
    with started_server(dict(os.environ)) as server:
        create_database(server.url("postgres"), "shop")
        run_sql(server.url("shop"), *TABLES)
        yield server


def as_role(server: PostgresServer, folder: Path, commands: CommandServer, **changes: object) -> CommandLine:
    place = f"127.0.0.1:{server.port}"
    cdc = CommandLine(
        folder=folder,
        source_url=f"postgresql://cdc_source_reader:{PASSWORD}@{place}/shop",
        store_url=f"postgresql://cdc_metadata:{PASSWORD}@{place}/cdc_metadata",
        tables=("public.orders", "public.customers"),
        server=commands,
    )
    source = {"kind": "postgres", "url": cdc.source_url, "publication": "cdc_shop", "slot": "cdc_shop"}
    cdc.write_settings(source=source, **changes)
    return cdc


def test_the_role_of_the_page_sets_up_snapshots_consumes_and_verifies(
    server: PostgresServer, tmp_path: Path, spark_url: str, command_server: CommandServer
) -> None:
    reader, owner = scripts()
    run_sql(server.url("shop"), *reader)
    run_sql(server.url("postgres"), *owner)
    cdc = as_role(server, tmp_path, command_server, spark=spark_url, snapshot={"poll_interval": "1s"})
    shown = cdc.run("setup-source", "--print-sql")
    assert shown.output == "SELECT pg_create_logical_replication_slot('cdc_shop', 'pgoutput');\n"
    ended = cdc.run("setup-source")
    assert (ended.exit_code, "done: SELECT pg_create" in ended.errors) == (0, True), ended.errors
    ended = cdc.run("snapshot")
    assert ended.exit_code == 0, ended.errors
    run_sql(server.url("shop"), "UPDATE orders SET note = 'b' WHERE id < 3", "DELETE FROM orders WHERE id = 4")
    assert cdc.run("consume", "--until-idle").exit_code == 0
    verified = cdc.run("verify", "--json")
    assert verified.exit_code == 0, verified.errors
    assert [row["source_rows"] for row in verified.rows] == [19, 0]
    assert cdc.run("status").exit_code == 0


def test_a_role_without_any_right_gets_the_list_of_all_that_is_missing(
    server: PostgresServer, tmp_path: Path, command_server: CommandServer
) -> None:
    run_sql(
        server.url("shop"),
        f"CREATE ROLE cdc_source_reader LOGIN PASSWORD '{PASSWORD}'",
        "CREATE SCHEMA hidden",
        "CREATE TABLE hidden.log (line text)",
        "CREATE TABLE hidden.parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE hidden.part PARTITION OF hidden.parted DEFAULT",
        "ALTER TABLE customers REPLICA IDENTITY NOTHING",
        "CREATE PUBLICATION cdc_shop FOR TABLE orders WHERE (id > 10), hidden.parted WITH (publish = 'insert')",
    )
    run_sql(server.url("postgres"), *scripts()[1])
    names = ("public.orders", "public.customers", "hidden.log", "hidden.parted")
    tables = [{"name": f"shop.{name}"} for name in names]
    cdc = as_role(server, tmp_path, command_server, tables=tables)
    refused = cdc.run("setup-source")
    assert (refused.exit_code, "may not replicate" in refused.error) == (1, True)
    run_sql(server.url("shop"), "ALTER ROLE cdc_source_reader REPLICATION")
    refused = cdc.run("setup-source")
    assert (refused.exit_code, "cannot be read" in refused.error) == (1, True)
    run_sql(server.url("shop"), "ALTER ROLE cdc_source_reader NOREPLICATION")
    shown = cdc.run("setup-source", "--print-sql")
    assert shown.exit_code == 0, shown.errors
    assert shown.output.splitlines() == MISSING
    run_sql(server.url("shop"), *shown.output.splitlines())
    assert cdc.run("setup-source", "--print-sql").output == ""
    ended = cdc.run("setup-source")
    assert (ended.exit_code, "ready: " in ended.errors) == (0, True), ended.errors
    run_sql(server.url("shop"), 'ALTER PUBLICATION "cdc_shop" DROP TABLE orders')
    fallen = cdc.run("setup-source", "--print-sql").output
    assert fallen == 'ALTER PUBLICATION "cdc_shop" ADD TABLE ONLY "public"."orders";\n'


def test_a_statement_that_the_role_may_not_run_is_printed_once_for_all_tables_that_are_removed(
    server: PostgresServer, tmp_path: Path, command_server: CommandServer
) -> None:
    reader, owner = scripts()
    run_sql(server.url("shop"), *reader)
    run_sql(server.url("postgres"), *owner)
    cdc = as_role(server, tmp_path, command_server)
    assert cdc.run("setup-source").exit_code == 0
    run_sql(server.url("shop"), "ALTER PUBLICATION cdc_shop OWNER TO CURRENT_USER")
    left = 'DROP PUBLICATION "cdc_shop";\n'
    removed = cdc.run("remove", "--pipeline")
    assert (removed.exit_code, removed.output.count(left), removed.output.endswith(f"\n{left}")) == (0, 1, True)
    again = cdc.run("remove", "--pipeline", "--json")
    assert [row["left_to_do"] for row in again.rows] == [left, left], "programs find it beside each table"


def test_a_member_of_the_role_by_which_amazon_rds_lets_roles_replicate_needs_no_replication(
    server: PostgresServer, tmp_path: Path, command_server: CommandServer
) -> None:
    reader, owner = scripts()
    run_sql(server.url("shop"), *reader, "ALTER ROLE cdc_source_reader NOREPLICATION", "CREATE ROLE rds_replication")
    run_sql(server.url("postgres"), *owner)
    cdc = as_role(server, tmp_path, command_server)
    create_slot = "SELECT pg_create_logical_replication_slot('cdc_shop', 'pgoutput')"
    assert cdc.run("setup-source", "--print-sql").output == f"{MISSING[0]}\n{create_slot};\n"
    run_sql(server.url("shop"), "GRANT rds_replication TO cdc_source_reader")
    assert cdc.run("setup-source", "--print-sql").output == f"{create_slot};\n"
    run_sql(server.url("shop"), create_slot)
    ended = cdc.run("setup-source")
    assert (ended.exit_code, "ready: " in ended.errors) == (0, True), ended.errors


def test_a_role_that_may_not_publish_is_told_so_in_one_line_with_the_command_that_prints_the_statements(
    server: PostgresServer, tmp_path: Path, command_server: CommandServer
) -> None:
    run_sql(server.url("shop"), *[line for line in scripts()[0] if "PUBLICATION" not in line])
    run_sql(server.url("postgres"), *scripts()[1])
    cdc = as_role(server, tmp_path, command_server)
    refused = cdc.run("setup-source")
    assert refused.exit_code == 1
    assert "permission denied for database shop" in refused.error
    assert "have an administrator run what cdc setup-source --print-sql prints" in refused.error
    assert query(server.url("shop"), "SELECT count(*) FROM pg_replication_slots") == [(0,)]
