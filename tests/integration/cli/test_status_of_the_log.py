"""`cdc status` says how much of the source's log the slot keeps back."""

from pathlib import Path

from tests.support.command_server import CommandServer
from tests.support.guarded import command_line, guarded_world


def test_status_says_what_the_slot_keeps_back_and_gives_programs_nothing_but_rows(
    database: str, store_url: str, tmp_path: Path, command_server: CommandServer
) -> None:
    with guarded_world(tmp_path, database, store_url) as world:
        line = command_line(world, command_server)
        line.write_settings()
        ended = line.run("status", "--json")
        slot = f"the slot {line.name} keeps back "
        assert slot in ended.errors
        assert "of the source's log; no limit" in ended.errors
        assert {row["stream_alarm"] for row in ended.rows} == {None}
        (partition,) = line.run("sql", "partitions", "--json").rows
    assert partition["log_retained_bytes"] > 0
    assert partition["log_bytes_left"] is None
