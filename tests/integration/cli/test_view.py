"""`cdc view`: the statement that gives readers a table without what is hidden in it."""

from tests.support.command_line import CommandLine
from tests.support.streams import run_sql


def test_the_statement_for_readers_names_the_sources_columns_and_leaves_hidden_rows_out(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    place = f"{(cdc.folder / 'lake').as_uri()}/datalake/{cdc.name}/public/orders"
    statement = (
        f"CREATE OR REPLACE VIEW `public_orders` AS SELECT `id`, `note` FROM delta.`{place}`"
        " WHERE NOT coalesce(`_cdc_deleted`, false)"
    )
    shown = cdc.run("view")
    assert (shown.exit_code, shown.output) == (0, f"{statement};\n")
    table = f"{cdc.name}.public.orders"
    assert cdc.run("view", table, "--json").rows == [{"table": table, "sql": statement}]


def test_a_table_that_nothing_is_known_of_yet_has_no_view(cdc: CommandLine) -> None:
    refused = cdc.run("view", f"{cdc.name}.public.orders")
    assert refused.exit_code == 2
    assert "run cdc setup-source" in refused.errors or "start the consumer" in refused.errors


def test_two_tables_whose_views_would_have_one_name_are_named_and_can_be_printed_alone(cdc: CommandLine) -> None:
    run_sql(
        cdc.source_url,
        "CREATE TABLE orders_history (id int PRIMARY KEY)",
        "CREATE SCHEMA a CREATE TABLE b_c (id int PRIMARY KEY)",
        'CREATE SCHEMA a_b CREATE TABLE "C" (id int PRIMARY KEY)',
    )
    names = [f"{cdc.name}.{table}" for table in ("public.orders_history", "public.orders", "a.b_c", "a_b.C")]
    cdc.write_settings(tables=[{"name": name, "history": name == names[1]} for name in names])
    assert cdc.run("setup-source").exit_code == 0
    shown = cdc.run("view", "--json")
    assert shown.exit_code == 2
    assert [row["table"] for row in shown.rows] == names[:3]
    first, second = [line for line in shown.errors.splitlines() if line.startswith("error: ")]
    assert f"the views of {names[0]} and {names[1]} have the same name, public_orders_history" in first
    assert f"the views of {names[2]} and {names[3]} have the same name, a_b_C" in second
    alone = cdc.run("view", names[1], "--json")
    assert (alone.exit_code, len(alone.rows)) == (0, 2)
    assert cdc.run("view", names[3]).output.startswith("CREATE OR REPLACE VIEW `a_b_C` AS")
