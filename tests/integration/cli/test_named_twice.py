"""A table that a command names twice is one table."""

import pytest

from tests.support.command_line import CommandLine


@pytest.mark.parametrize("verb", [("apply", "--until-idle"), ("snapshot",)])
def test_a_table_that_is_named_twice_is_worked_on_once(cdc: CommandLine, verb: tuple[str, ...]) -> None:
    name = f"{cdc.name}.public.orders"
    assert cdc.run("setup-source").exit_code == 0
    ended = cdc.run(*verb, name, name, "--json")
    assert ended.exit_code == 0, ended.errors
    assert [row["table"] for row in ended.rows] == [name]


def test_a_table_that_is_named_twice_is_one_for_exported_files(cdc: CommandLine) -> None:
    ended = cdc.run("snapshot", "t", "t", "--from", "gs://a", "--as-of", "0/1")
    assert "--from 'gs://a' is of an unknown kind" in ended.error
