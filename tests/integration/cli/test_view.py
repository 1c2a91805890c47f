"""`cdc view`: the statement that gives readers a table without what is hidden in it."""

from tests.support.command_line import CommandLine


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
