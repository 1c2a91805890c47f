"""A server or slot that cannot serve what comes next stops the stream, with both positions; then it begins again."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cdc_pipeline.errors import SourceChanged, SourceError, SourceGap
from cdc_pipeline.launcher.postgres import PostgresServer, create_database, running_server
from cdc_pipeline.sources.postgres.catalogue import read_server, read_slot
from cdc_pipeline.sources.postgres.session import session
from cdc_pipeline.sources.postgres.slot_guards import refuse_gap
from cdc_pipeline.wiring import Pipeline
from tests.crash.world import World
from tests.support.command_line import rows_of_store
from tests.support.eventually import eventually
from tests.support.guarded import begin_again, go_on, guarded_world, in_lake, in_source, name_of, states, world_of
from tests.support.ledgers import forget_store, ledger_of
from tests.support.pipelines import consume
from tests.support.postgres import copy_of, fresh_store, standby_of, started_server
from tests.support.streams import postgres_of, run_sql

AHEAD = "SELECT pg_switch_wal()"
WRITE = "INSERT INTO orders SELECT n, 'w' FROM generate_series((SELECT max(id) + 1 FROM orders), 200) AS n"
STATUS = "SELECT wal_status FROM pg_replication_slots WHERE NOT temporary"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, whose settings and files may be changed."""
    with started_server(dict(os.environ)) as server:
        yield server


@pytest.fixture
def world(server: PostgresServer, postgres: PostgresServer, tmp_path: Path) -> Iterator[World]:
    create_database(server.url("postgres"), "shop")
    with fresh_store(postgres) as store_url, guarded_world(tmp_path, server.url("shop"), store_url) as world:
        yield world


def refusal(world: World, error: type[SourceError]) -> str:
    """Why neither the consumer nor a set-up goes on; both leave everything as it was."""
    before = rows_of_store(world.store_url)
    with world.process() as pipeline:
        with pytest.raises(error) as stopped:
            consume(pipeline)
        with pytest.raises(error):
            pipeline.source_setup().set_up(begin_again=pipeline.table_names())
        alarm = pipeline.store.inspection.run("lag")[0]["stream_alarm"]
    assert alarm == f"{error.__name__}: {stopped.value}"
    assert (stopped.value.exit_code, stopped.value.retryable) == (1, False)
    assert rows_of_store(world.store_url) == before
    return str(stopped.value)


def check_new_beginning(world: World) -> None:
    """What the refusal asks for: everything stops at first, and after the snapshots the lake equals the source."""
    with world.process() as pipeline:
        stale = pipeline.source_setup().begin_stream_again().tables
    assert len(stale) == len(states(world)) == 2
    run_sql(world.source_url, "UPDATE orders SET note = 'before the snapshot'")
    stopped = go_on(world)
    assert all("were never read; run cdc snapshot" in why for why in stopped.values())
    assert stopped.keys() == {"orders", "customers"}
    begin_again(world)
    run_sql(world.source_url, "UPDATE orders SET note = 'behind it' WHERE id = 2", "DELETE FROM customers")
    assert go_on(world) == {}
    assert [in_lake(world, table) for table in ("orders", "customers")] == [
        in_source(world, table) for table in ("orders", "customers")
    ]
    assert states(world) == {"orders": ("live", None), "customers": ("live", None)}


def test_a_slot_that_held_back_too_much_log_is_given_up_and_begins_again(world: World) -> None:
    run_sql(world.source_url, "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")

    def is_lost() -> bool:
        run_sql(world.source_url, WRITE, AHEAD, AHEAD, AHEAD, "CHECKPOINT")
        return world.query(STATUS) == [("lost",)]

    assert eventually(is_lost)
    error = refusal(world, SourceGap)
    assert "has lost its log (wal_removed), and the source's log ends at " in error
    assert "expected a slot that serves position " in error
    assert "run cdc setup-source --begin-again, then cdc snapshot" in error
    check_new_beginning(world)
    before = ledger_of(world.store_url)
    forget_store(world.store_url)
    with world.process() as pipeline:
        pipeline.rebuild().run()
    assert ledger_of(world.store_url) == before
    assert go_on(world) == {}


def test_a_table_that_is_gone_keeps_no_other_from_a_new_beginning(world: World) -> None:
    run_sql(world.source_url, "DROP TABLE orders")
    with world.process() as pipeline, capture_logs() as logs:
        begun = pipeline.source_setup().begin_stream_again()
    assert (begun.tables, list(begun.refused)) == ((name_of(world, "customers"),), [name_of(world, "orders")])
    refused = [log["found"] for log in logs if log["event"] == "table not read"]
    assert refused == [f"the source has no table {name_of(world, 'orders')}"]
    begin_again(world, [name_of(world, "customers")])
    run_sql(world.source_url, "UPDATE customers SET note = 'behind it'")
    assert go_on(world).keys() == {"orders"}
    assert in_lake(world, "customers") == in_source(world, "customers")
    run_sql(world.source_url, "DROP TABLE customers")
    before = rows_of_store(world.store_url)
    with world.process() as pipeline, pytest.raises(SourceError, match=r"the source has no table .*\.orders"):
        pipeline.source_setup().begin_stream_again()
    assert rows_of_store(world.store_url) == before


def test_log_that_the_slot_keeps_back_is_shown_and_an_alarm_before_it_is_lost(world: World) -> None:
    """The alarm stops nothing: the consumer reads on, and takes it back."""
    run_sql(world.source_url, "ALTER SYSTEM SET max_slot_wal_keep_size = '64MB'", "SELECT pg_reload_conf()")
    with world.process() as pipeline:
        seen = pipeline.source_log().look()
        assert seen is not None
        assert (seen.most_bytes, seen.warning) == (64 << 20, None)
        assert seen.bytes_left is not None
        run_sql(world.source_url, WRITE, *[f"{AHEAD}; SELECT txid_current()"] * 4)
        later = pipeline.source_log().look()
        assert later is not None
        assert later.retained_bytes is not None
        assert later.retained_bytes > (seen.retained_bytes or 0) + (32 << 20)
        assert later.bytes_left is not None
        assert 0 < later.bytes_left < seen.bytes_left - (32 << 20)
        assert later.warning is not None
        (row,) = pipeline.store.inspection.run("partitions")
        assert (row["log_retained_bytes"], row["log_bytes_left"]) == (later.retained_bytes, later.bytes_left)
        (lag, *_) = pipeline.store.inspection.run("lag")
        assert lag["stream_alarm"] == later.warning
        assert lag["reason"] is None
        assert go_on(world) == {}
        run_sql(world.source_url, "CHECKPOINT")
        assert eventually(lambda: no_alarm(world, pipeline))
        assert pipeline.store.inspection.run("lag")[0]["stream_alarm"] is None


def no_alarm(world: World, pipeline: Pipeline) -> bool:
    """The slot lets go of the log when somebody has confirmed that it is read."""
    run_sql(world.source_url, WRITE, "CHECKPOINT")
    go_on(world)
    seen = pipeline.source_log().look()
    return seen is not None and seen.warning is None


def test_a_slot_that_nobody_read_for_too_long_is_given_up(world: World) -> None:
    run_sql(world.source_url, "ALTER SYSTEM SET idle_replication_slot_timeout = '1s'", "SELECT pg_reload_conf()")

    def is_lost() -> bool:
        run_sql(world.source_url, WRITE, "CHECKPOINT")
        return world.query(STATUS) == [("lost",)]

    assert eventually(is_lost)
    assert "has lost its log (idle_timeout), and the source's log ends at " in refusal(world, SourceGap)


def test_a_standby_is_refused_and_stops_the_stream_when_it_was_promoted(
    world: World, server: PostgresServer, tmp_path: Path
) -> None:
    with standby_of(server) as standby, running_server(standby):
        promoted = world_of(tmp_path, standby.url("shop"), world.store_url)
        assert "is a standby; expected the primary server" in refusal(promoted, SourceError)
        run_sql(promoted.source_url, "SELECT pg_promote()")
        error = refusal(promoted, SourceChanged)
        assert "timeline 2, whose log ends at " in error
        assert "timeline 1, which is registered up to " in error
        assert "cdc setup-source --begin-again" in error
        run_sql(promoted.source_url, AHEAD)
        check_new_beginning(promoted)
        assert "timeline 1, whose log ends at " in refusal(world, SourceChanged)


def test_a_consumer_that_stood_still_while_another_registered_more_raises_no_alarm(world: World) -> None:
    name = postgres_of(world.settings).slot
    with world.process() as pipeline, session(world.source_url) as connection:
        slot, server = read_slot(connection, name), read_server(connection)
        run_sql(world.source_url, WRITE)
        assert go_on(world) == {}
        registered = pipeline.store.streams.next_offset("shop")
        assert registered is not None
        refuse_gap(name, slot, server, registered, lambda: read_server(connection).end_position)


def test_a_server_that_was_set_back_stops_the_stream_also_when_its_log_is_ahead_again(
    world: World, server: PostgresServer, tmp_path: Path
) -> None:
    run_sql(world.source_url, "CHECKPOINT")
    with copy_of(server) as restored:
        run_sql(world.source_url, WRITE)
        assert go_on(world) == {}
        with running_server(restored):
            back = world_of(tmp_path, restored.url("shop"), world.store_url)
            error = refusal(back, SourceChanged)
            assert "the server was set back; expected a log that reaches " in error
            with back.process() as pipeline, pytest.raises(SourceError, match="expected a log that has passed"):
                pipeline.source_setup().begin_stream_again()
            run_sql(back.source_url, "UPDATE customers SET note = 'another history'", AHEAD, WRITE)
            with back.process() as pipeline, pytest.raises(SourceChanged, match="expected the registered transaction"):
                consume(pipeline)
            check_new_beginning(back)
