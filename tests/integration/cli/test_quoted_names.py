"""A table whose name has a dot is one table, whether pipeline.yml or the metadata store names it."""

from tests.support.command_line import CommandLine
from tests.support.streams import run_sql


def test_status_knows_a_registered_table_by_its_quoted_name(cdc: CommandLine) -> None:
    run_sql(cdc.source_url, 'CREATE TABLE "order.items" (id int PRIMARY KEY)')
    name = f'{cdc.name}.public."order.items"'
    cdc.write_settings(tables=[{"name": name}])
    assert cdc.run("setup-source").exit_code == 0
    assert [(row["source_table"], row["state"]) for row in cdc.run("status", "--json").rows] == [(name, "registered")]
    assert [row["source_table"] for row in cdc.run("sql", "lag", "--set", f"table={name}", "--json").rows] == [name]
