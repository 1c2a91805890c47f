"""A standby that was promoted with a copy of the slot is followed when both prove themselves, and only then."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
import pytest
from structlog.testing import capture_logs

from cdc_pipeline.errors import SourceChanged
from cdc_pipeline.launcher.postgres import PostgresServer, create_database, running_server
from cdc_pipeline.sources.postgres.slot_guards import switch_points
from tests.crash.world import World
from tests.support.eventually import eventually
from tests.support.guarded import go_on, guarded_world, in_lake, in_source, world_of
from tests.support.pipelines import consume
from tests.support.postgres import fresh_store, standby_of, started_server
from tests.support.streams import run_sql

PHYSICAL = "copying"
SYNCED = "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary"
CAUGHT_UP = "SELECT pg_last_wal_replay_lsn() >= '{}'"
CREATE_SLOT = "SELECT pg_create_logical_replication_slot('{0}', 'pgoutput', failover => true)"


@contextmanager
def following(server: PostgresServer) -> Iterator[PostgresServer]:
    """A running standby that copies the server's failover slots."""
    run_sql(server.url("postgres"), f"SELECT pg_create_physical_replication_slot('{PHYSICAL}', true)")
    with standby_of(server) as standby:
        with (standby.folder / "data" / "postgresql.auto.conf").open("a") as file:
            file.write(f"primary_conninfo = '{server.url('postgres')}'\nprimary_slot_name = '{PHYSICAL}'\n")
            file.write("hot_standby_feedback = on\nsync_replication_slots = on\nwal_receiver_status_interval = 1\n")
        with running_server(standby):
            yield standby


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with started_server(dict(os.environ)) as server:
        yield server


@pytest.fixture
def world(server: PostgresServer, postgres: PostgresServer, tmp_path: Path) -> Iterator[World]:
    """Whose slot, made by an administrator, is one that standbys may copy."""
    create_database(server.url("postgres"), "shop")
    run_sql(server.url("shop"), CREATE_SLOT.format("shop"))
    with fresh_store(postgres) as store_url, guarded_world(tmp_path, server.url("shop"), store_url) as world:
        yield world


def one(url: str, statement: str) -> object:
    with psycopg2.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
    connection.close()
    return row[0] if row else None


def await_copy(world: World, standby: PostgresServer) -> None:
    """The standby has all of the log, and the slot, which moved on since the copy of it was begun."""

    def is_copied() -> bool:
        run_sql(world.source_url, "SELECT pg_log_standby_snapshot()", "UPDATE customers SET note = note")
        go_on(world)
        return one(standby.url("postgres"), SYNCED) == 1

    assert eventually(is_copied)
    end = one(world.source_url, "SELECT pg_current_wal_flush_lsn()::text")
    assert eventually(lambda: one(standby.url("postgres"), CAUGHT_UP.format(end)) is True)


def promoted(world: World, standby: PostgresServer) -> World:
    run_sql(standby.url("postgres"), "SELECT pg_promote()")
    return world_of(world.settings.folder, standby.url("shop"), world.store_url)


def test_a_promoted_standby_with_a_copied_slot_is_followed(world: World, server: PostgresServer) -> None:
    with following(server) as standby:
        await_copy(world, standby)
        new = promoted(world, standby)
        run_sql(new.source_url, "INSERT INTO orders VALUES (10, 'there')", "DELETE FROM customers WHERE id = 1")
        assert go_on(new) == {}
        for table in ("orders", "customers"):
            assert in_lake(new, table) == in_source(new, table)
        assert new.store_query("SELECT source_timeline FROM cdc.stream") == [(2,)]
        with world.process() as pipeline, pytest.raises(SourceChanged, match="timeline 1, whose log ends at "):
            consume(pipeline)


def test_a_standby_that_was_promoted_without_what_is_registered_is_refused(
    world: World, server: PostgresServer
) -> None:
    with following(server) as standby:
        await_copy(world, standby)
        new = promoted(world, standby)
        run_sql(world.source_url, "INSERT INTO orders VALUES (10, 'lost')")
        assert go_on(world) == {}
        run_sql(new.source_url, "INSERT INTO orders VALUES (10, 'there')", "SELECT pg_switch_wal()")
        with new.process() as pipeline, pytest.raises(SourceChanged, match="cdc setup-source --begin-again"):
            consume(pipeline)
        assert new.store_query("SELECT source_timeline FROM cdc.stream") == [(1,)]


def test_a_new_beginning_keeps_the_slots_failover_and_the_log_tells_so_before(world: World) -> None:
    with world.process() as pipeline, capture_logs() as logs:
        pipeline.source_setup().begin_stream_again()
    assert [log["slot"] for log in logs if "with failover" in log["event"]] == ["shop"]
    assert one(world.source_url, "SELECT failover FROM pg_replication_slots WHERE NOT temporary") is True


def test_the_history_of_timelines_tells_where_each_was_left() -> None:
    history = "1\t0/3000060\tno recovery target specified\n\n2\t1/A0\tbefore 2000-01-01\n"
    assert switch_points(history) == {1: 0x3000060, 2: 0x1000000A0}
