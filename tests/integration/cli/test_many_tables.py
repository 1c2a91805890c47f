"""What looks at many tables shows each of them, and says so where it does not."""

import pytest

from tests.support.command_line import CommandLine
from tests.support.streams import run_sql

CHECK_FAILED, USAGE = 3, 2


@pytest.fixture
def added(cdc: CommandLine) -> str:
    """A table that is in pipeline.yml since the set-up."""
    assert cdc.run("setup-source").exit_code == 0
    run_sql(cdc.source_url, "CREATE TABLE later (id int PRIMARY KEY)")
    tables = [{"name": f"{cdc.name}.public.{table}"} for table in ("orders", "later")]
    cdc.write_settings(tables=tables)
    return f"{cdc.name}.public.later"


def test_status_shows_also_the_tables_that_nobody_has_registered(cdc: CommandLine, added: str) -> None:
    orders, later = cdc.run("status", "--json").rows
    assert orders.keys() == later.keys()
    assert (later["source_table"], later["state"], later["seconds_behind"]) == (added, None, None)
    assert "run cdc setup-source" in later["reason"]
    assert (orders["lake_as_of"], orders["reason"]) == (None, "it has no snapshot yet")
    assert isinstance(orders["seconds_behind"], int | float), "a number, for programs"
    assert orders["seconds_behind"] > 0
    shown = cdc.run("status")
    assert (shown.exit_code, "it is not registered" in shown.output) == (0, True)


def test_status_has_the_same_columns_before_any_table_is_registered(cdc: CommandLine) -> None:
    (before,) = cdc.run("status", "--json").rows
    assert cdc.run("setup-source").exit_code == 0
    (after,) = cdc.run("status", "--json").rows
    assert list(before) == list(after)


def test_view_prints_the_statements_that_there_are_and_names_the_tables_that_have_none(
    cdc: CommandLine, added: str
) -> None:
    shown = cdc.run("view")
    assert (shown.exit_code, shown.output.count("CREATE OR REPLACE VIEW")) == (USAGE, 1)
    assert added in shown.errors.replace("\n", " ")


def test_verify_gives_a_verdict_on_every_table_and_ends_with_three(cdc: CommandLine, added: str) -> None:
    del added
    assert cdc.run("setup-source").exit_code == 0
    ended = cdc.run("verify", "--timeout", "5", "--json")
    assert ended.exit_code == CHECK_FAILED
    assert [row["verdict"] for row in ended.rows] == ["not compared"] * 2
    assert all("has no published snapshot yet; run cdc snapshot first" in row["problem"] for row in ended.rows)
    assert {row["differing_rows"] for row in ended.rows} == {None}


def test_verify_says_so_when_more_ids_differ_than_it_lists(cdc: CommandLine, spark_url: str) -> None:
    """The lake has no row with the source's infinite date."""
    cdc.write_settings(spark=spark_url)
    run_sql(
        cdc.source_url,
        "ALTER TABLE orders ADD day date",
        "INSERT INTO orders SELECT n, 'a', 'infinity' FROM generate_series(1, 101) AS n",
    )
    assert cdc.run("snapshot").exit_code == CHECK_FAILED
    ended = cdc.run("verify", "--json")
    (found,) = ended.rows
    assert (found["differing_rows"], len(found["differences"])) == (101, 100)
    assert "only the first 100 ids that differ are listed for each table" in ended.errors


def test_a_limit_that_leaves_rows_out_says_so_on_stderr(cdc: CommandLine, added: str) -> None:
    del added
    assert cdc.run("setup-source").exit_code == 0
    cut, whole = (cdc.run("sql", "lag", "--json", "--set", f"limit={limit}") for limit in (1, 2))
    assert (len(cut.rows), "only the first 1 rows are shown" in cut.errors) == (1, True)
    assert (len(whole.rows), "are shown" in whole.errors) == (2, False)
