"""`cdc clean`: what would be deleted, and what was, as a table and as JSON."""

from pathlib import Path

import pytest

from tests.crash.world import World
from tests.support.command_line import CommandLine
from tests.support.command_server import CommandServer
from tests.support.guarded import command_line, go_on, guarded_world, name_of
from tests.support.pipelines import consume
from tests.support.streams import run_sql

KINDS = {"slice files", "snapshot files", "rows of claim", "rows of quarantine", "rows of snapshot"}
AGED = (
    "UPDATE cdc.slice SET registered_at = registered_at - interval '8d', applied_at = applied_at - interval '8d'",
    "UPDATE cdc.boundary SET registered_at = registered_at - interval '8d'",
)


@pytest.fixture
def world(database: str, store_url: str, tmp_path: Path) -> World:
    with guarded_world(tmp_path, database, store_url) as world:
        return world


@pytest.fixture
def line(world: World, command_server: CommandServer) -> CommandLine:
    found = command_line(world, command_server)
    found.write_settings()
    return found


def test_clean_says_what_would_go_then_what_went_and_then_nothing(world: World, line: CommandLine) -> None:
    for number in (7, 8):
        run_sql(world.source_url, f"INSERT INTO orders VALUES ({number}, 'n')")
        go_on(world)
    run_sql(world.store_url, *AGED)
    told, done, again = (line.run("clean", "--json", *words).rows for words in (("--dry-run",), (), ()))
    assert told == done
    counts = {found["kind"]: found["count"] for found in done}
    assert counts.keys() >= KINDS
    assert counts["slice files"] > 0
    assert all(found["bytes"] > 0 and found["oldest"] for found in done if found["kind"] == "slice files")
    assert {found["count"] for found in again} == {0}


def test_clean_names_the_table_for_which_the_cut_files_are_kept(world: World, line: CommandLine) -> None:
    run_sql(world.source_url, "INSERT INTO orders VALUES (7, 'n')")
    with world.process() as pipeline:
        consume(pipeline)
    run_sql(world.store_url, *AGED)
    ended = line.run("clean")
    assert ended.exit_code == 0
    assert (
        f"cut files are not deleted because of {name_of(world, 'orders')}: slices of it are not applied" in ended.errors
    )


def test_a_table_to_which_nobody_writes_keeps_no_cut_file(world: World, line: CommandLine) -> None:
    for number in range(7, 10):
        run_sql(world.source_url, f"INSERT INTO orders VALUES ({number}, 'n')")
        go_on(world)
    run_sql(world.store_url, *AGED)
    counts = {found["kind"]: found["count"] for found in line.run("clean", "--json").rows}
    assert counts["cut files"] > 1
