"""Each supported version of PostgreSQL as the source: snapshot and stream end at what it holds."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_pipeline.errors import SourceError
from cdc_pipeline.launcher.postgres import PostgresServer
from tests.crash.invariants import check
from tests.crash.world import go_on, new_world, register_changes, take_snapshot
from tests.support.guarded import CREATE, begin_again, guarded_world, in_lake, in_source, world_of
from tests.support.guarded import go_on as go_on_guarded
from tests.support.postgres import fresh_database, fresh_store, started_server
from tests.support.postgres_versions import locked_versions, unpacked_binaries
from tests.support.streams import postgres_of, run_sql

NEWEST = "18"
IN_MAKE_TEST = {min(locked_versions()), max(locked_versions())}
"""Beside the newest, on which all other tests run; `make nightly` takes those between."""


@pytest.fixture(
    params=[
        pytest.param(each, marks=() if each in IN_MAKE_TEST else pytest.mark.nightly)
        for each in sorted(locked_versions())
    ]
)
def older_postgres(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    binaries = unpacked_binaries(locked_versions()[request.param])
    with started_server({**os.environ, "CDC_POSTGRES_BIN": str(binaries)}) as server:
        yield server


def test_the_lake_equals_a_source_of_an_older_version(older_postgres: PostgresServer, tmp_path: Path) -> None:
    with new_world(older_postgres, tmp_path) as world:
        world.change()
        with world.process() as pipeline:
            pipeline.source_setup().set_up()
        go_on(world)
        with world.process() as pipeline:
            take_snapshot(pipeline, world.tables)
        for _ in range(5):
            register_changes(world)
        go_on(world)
        check(world)


def test_a_stream_whose_publication_was_dropped_says_so_and_begins_again(
    older_postgres: PostgresServer, tmp_path: Path
) -> None:
    with (
        fresh_database(older_postgres) as url,
        fresh_store(older_postgres) as store_url,
        guarded_world(tmp_path, url, store_url) as world,
    ):
        drop = f'DROP PUBLICATION "{postgres_of(world.settings).publication}"'
        run_sql(world.source_url, drop, "UPDATE orders SET note = 'unseen'")
        with pytest.raises(
            SourceError, match=r"does not exist.*; run cdc setup-source --begin-again, then cdc snapshot"
        ):
            go_on_guarded(world)
        with world.process() as pipeline:
            pipeline.source_setup().begin_stream_again()
        run_sql(world.source_url, "UPDATE orders SET note = 'before the snapshot' WHERE id = 1")
        begin_again(world)
        run_sql(world.source_url, "DELETE FROM orders WHERE id = 2")
        assert go_on_guarded(world) == {}
        assert in_lake(world, "orders") == in_source(world, "orders")


def test_a_slot_that_was_created_before_its_publication_is_refused_before_it_is_registered(
    older_postgres: PostgresServer, tmp_path: Path
) -> None:
    with fresh_database(older_postgres) as url, fresh_store(older_postgres) as store_url:
        world = world_of(tmp_path, url, store_url)
        slot = postgres_of(world.settings).slot
        run_sql(url, f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')", *CREATE)
        with world.process() as pipeline:
            with pytest.raises(SourceError, match="was created before its publication") as refused:
                pipeline.source_setup().set_up()
            assert pipeline.registered_stream().next_offset() is None
        assert f"run SELECT pg_drop_replication_slot('{slot}'), then" in (refused.value.remedy or "")
        run_sql(url, f"SELECT pg_drop_replication_slot('{slot}')")
        begin_again(world)
        run_sql(url, "DELETE FROM orders WHERE id = 2")
        assert go_on_guarded(world) == {}
        assert in_lake(world, "orders") == in_source(world, "orders")


def test_every_version_from_14_on_is_tried(postgres: PostgresServer, tmp_path: Path) -> None:
    with new_world(postgres, tmp_path) as world:
        newest = world.query("SELECT current_setting('server_version_num')::int / 10000")
    assert [*sorted(locked_versions()), str(newest[0][0])] == ["14", "15", "16", "17", NEWEST]
