"""`cdc check-store`: stores that can hold a lake pass, and one that lets two writers win is refused everywhere."""

from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.command_server import CommandServer
from tests.support.faulty_server import UNCONDITIONAL, faulty
from tests.support.s3 import BUCKET, REGION, s3_objects

USAGE, CHECK_FAILED = 2, 3
CHECKS = [
    "threads race for one object",
    "processes race for one object",
    "large files race for one object",
    "what was refused is told by its bytes",
    "read after write",
    "list after write, in order",
    "gone after delete",
]
RACES = CHECKS[:4]


@pytest.fixture
def cdc(tmp_path: Path, command_server: CommandServer) -> CommandLine:
    """Beside a pipeline.yml whose servers are all away: a check needs none."""
    away = "postgresql://nobody@127.0.0.1:1/nothing"
    cdc = CommandLine(folder=tmp_path, source_url=away, store_url=away, server=command_server)
    cdc.write_settings()
    return cdc


def test_s3_passes_every_check_and_nothing_is_left(cdc: CommandLine, s3_endpoint: str, s3_prefix: str) -> None:
    server = {"endpoint": s3_endpoint, "region": REGION, "path_style": True}
    cdc.write_settings(lake=f"s3://{BUCKET}/{s3_prefix}", object_store=server)
    ended = cdc.run("check-store", "--json")
    assert ended.exit_code == 0, ended.errors
    assert [(row["check"], row["kept"]) for row in ended.rows] == [(check, True) for check in CHECKS]
    assert list(s3_objects(s3_endpoint, s3_prefix).list_prefix("")) == []


def test_a_store_that_takes_no_notice_of_the_condition_fails_every_race(
    cdc: CommandLine, s3_endpoint: str, s3_prefix: str
) -> None:
    with faulty(s3_endpoint) as server:
        server.rule = lambda request: UNCONDITIONAL if request.conditional else None
        options = ("--endpoint", server.endpoint, "--region", REGION, "--path-style")
        ended = cdc.run("check-store", f"s3://{BUCKET}/{s3_prefix}", *options)
    assert ended.exit_code == CHECK_FAILED, ended.errors
    assert [line.removeprefix("FAILED ").split(":")[0] for line in ended.output.splitlines()[:4]] == RACES
    assert [line[:6] for line in ended.output.splitlines()[4:]] == ["ok    "] * 3


def test_a_credential_in_the_url_is_refused_by_name(cdc: CommandLine) -> None:
    ended = cdc.run("check-store", "s3://KEY:HIDDEN@bucket/x")
    assert ended.exit_code == USAGE
    assert "holds a credential: take it out, and give it by AWS_ACCESS_KEY_ID" in ended.error
    assert "HIDDEN" not in ended.errors
