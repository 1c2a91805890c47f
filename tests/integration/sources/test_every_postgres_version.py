"""Each supported version of PostgreSQL as the source: snapshot and stream end at what it holds."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_pipeline.stack.postgres import PostgresServer
from tests.crash.invariants import check
from tests.crash.world import go_on, new_world, register_changes, take_snapshot
from tests.support.postgres import started_server
from tests.support.postgres_versions import locked_versions, unpacked_binaries

NEWEST = "18"


@pytest.fixture(params=sorted(locked_versions()))
def older_postgres(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    binaries = unpacked_binaries(locked_versions()[request.param])
    with started_server({**os.environ, "CDC_POSTGRES_BIN": str(binaries)}) as server:
        yield server


def test_the_lake_equals_a_source_of_an_older_version(older_postgres: PostgresServer, tmp_path: Path) -> None:
    with new_world(older_postgres, tmp_path) as world:
        world.change()
        go_on(world)
        with world.process() as pipeline:
            take_snapshot(pipeline, world.tables)
        for _ in range(5):
            register_changes(world)
        go_on(world)
        check(world)


def test_every_version_from_14_on_is_tried(postgres: PostgresServer, tmp_path: Path) -> None:
    with new_world(postgres, tmp_path) as world:
        newest = world.query("SELECT current_setting('server_version_num')::int / 10000")
    assert [*sorted(locked_versions()), str(newest[0][0])] == ["14", "15", "16", "17", NEWEST]
