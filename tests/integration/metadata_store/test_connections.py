"""A connection that the server closed is replaced before a transaction uses it, or fails one transaction."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Barrier

import psycopg2.extensions
import pytest
from sqlalchemy import Engine, event, make_url, text

from cdc_pipeline.errors import LeaseBusy, SnapshotError, StaleEpoch, StoreAway
from cdc_pipeline.metadata_store.database import Database, create_store_engine
from cdc_pipeline.metadata_store.leases import hold_lease
from cdc_pipeline.metadata_store.ledger.cut import LateSlice
from cdc_pipeline.metadata_store.ledger.stale_tables import mark_stale
from cdc_pipeline.metadata_store.ledger.streams import lock_stream
from cdc_pipeline.metadata_store.operations.rebuild import Rebuild
from cdc_pipeline.metadata_store.snapshots.quarantined_rows import QuarantinedRow
from cdc_pipeline.metadata_store.states import SnapshotState
from tests.support.command_line import query
from tests.support.eventually import eventually
from tests.support.metadata_store import STREAM, opened_shop
from tests.support.streams import run_sql

IS_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
CLOSE_SESSIONS = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'cdc'
"""


class Seconds:
    """A clock that stands still until a test sets it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


@pytest.fixture
def engine(database: str, clock: Seconds) -> Iterator[Engine]:
    engine = create_store_engine(database, clock=clock)
    yield engine
    engine.dispose()


def test_connections_that_the_server_closed_while_they_were_unused_are_replaced(
    engine: Engine, database: str, clock: Seconds
) -> None:
    closed = two_sessions(engine)
    run_sql(database, CLOSE_SESSIONS)
    clock.now += 2
    assert not closed & two_sessions(engine)


def test_one_transaction_fails_if_its_connection_was_closed_a_moment_ago(engine: Engine, database: str) -> None:
    session_of(engine)
    run_sql(database, CLOSE_SESSIONS)
    with pytest.raises(StoreAway, match=r"did not answer.*the same call is safe to repeat"):
        session_of(engine)
    session_of(engine)


def test_the_server_notices_within_25_seconds_that_a_machine_is_gone(engine: Engine) -> None:
    shown = (f"current_setting('tcp_keepalives_{name}')" for name in ("idle", "interval", "count"))
    with engine.connect() as connection:
        assert engine.url.host == "127.0.0.1"
        assert tuple(connection.execute(text(f"SELECT {', '.join(shown)}")).one()) == ("10", "5", "3")


def test_a_connection_that_was_unused_and_lives_is_used_again(engine: Engine, clock: Seconds) -> None:
    first = session_of(engine)
    clock.now += 2
    assert session_of(engine) == first


def test_a_server_that_is_still_read_only_is_away_and_left(engine: Engine, database: str) -> None:
    """As a standby is to which the store's name moved before it was promoted."""
    name = make_url(database).database
    run_sql(database, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    with pytest.raises(StoreAway, match=r"accepts no changes: cannot execute .* in a read-only transaction") as found:
        create_table(engine)
    assert found.value.retryable
    run_sql(database, "SET default_transaction_read_only = off", f'ALTER DATABASE "{name}" RESET ALL')
    create_table(engine)


def test_a_statement_that_took_too_long_is_called_so(engine: Engine) -> None:
    counted = "SET LOCAL statement_timeout = '50ms'; SELECT count(*) FROM generate_series(1, 1000000000000)"
    with (
        pytest.raises(StoreAway, match=r"ended a statement: .*statement timeout.*fewer rows"),
        Database(engine=engine).transaction("test") as connection,
    ):
        connection.execute(text(counted))


def test_a_session_that_the_server_ended_as_idle_in_a_transaction_is_called_so(engine: Engine, database: str) -> None:
    with pytest.raises(StoreAway, match=r"if it runs, it ended a session that paused in a transaction.*else start it"):
        pause_in_a_transaction(engine, database)


def pause_in_a_transaction(engine: Engine, database: str) -> None:
    sessions = "SELECT FROM pg_stat_activity WHERE application_name = 'cdc' AND datname = current_database()"
    with Database(engine=engine).transaction("test") as connection:
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = '50ms'"))
        assert eventually(lambda: query(database, sessions) == [])
        connection.execute(text("SELECT 1"))


def create_table(engine: Engine) -> None:
    with Database(engine=engine).transaction("test") as connection:
        connection.execute(text("CREATE TABLE public.written ()"))


def session_of(engine: Engine) -> int:
    """Returns the server's process of a transaction's connection."""
    with Database(engine=engine).transaction("test") as connection:
        return int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())


def two_sessions(engine: Engine) -> set[int]:
    with Database(engine=engine).transaction("test") as connection:
        return {session_of(engine), int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())}


def longest_idle(database: Database) -> timedelta:
    with database.transaction("test") as connection:
        longest = "SELECT current_setting('idle_in_transaction_session_timeout')::interval"
        found: timedelta = connection.execute(text(longest)).scalar_one()
    return found


def test_a_process_that_stops_within_a_transaction_keeps_its_locks_for_less_than_ten_seconds(engine: Engine) -> None:
    assert timedelta() < longest_idle(Database(engine=engine)) < timedelta(seconds=10)


def test_a_rebuild_may_read_the_bucket_for_longer_than_that_within_its_transaction(store_url: str) -> None:
    with opened_shop(store_url) as shop:
        database = Database(engine=shop.engine)
        with Rebuild(database=database).emptied(STREAM.name) as empty:
            assert longest_idle(empty.database) == timedelta()
        assert longest_idle(database) > timedelta()


def test_a_table_becomes_stale_while_its_snapshot_fails(database: str) -> None:
    """Both wait for the table first; in another order each would wait for the other."""
    with opened_shop(database) as shop, ThreadPoolExecutor(1) as pool:
        shop.store.snapshots.create_snapshot(shop.new_snapshot(2))
        with shop.engine.begin() as connection:
            connection.exec_driver_sql("SELECT FROM cdc.source_table FOR UPDATE")
            failing = pool.submit(shop.store.snapshots.set_snapshot_state, "first", SnapshotState.FAILED)
            assert eventually(lambda: query(database, IS_WAITING) == [(1,)])
            mark_stale(connection, [shop.orders.table_id], "a gap")
        with pytest.raises(SnapshotError, match="is abandoned and cannot become failed"):
            failing.result()


def test_a_table_becomes_stale_while_a_row_of_its_snapshot_is_quarantined(database: str) -> None:
    row = QuarantinedRow(column="note", reason="too long", payload={"order_id": "1"})
    with opened_shop(database) as shop, ThreadPoolExecutor(1) as pool:
        snapshot = shop.store.snapshots.create_snapshot(shop.new_snapshot(2))
        with shop.engine.begin() as connection:
            connection.exec_driver_sql("SELECT FROM cdc.source_table FOR UPDATE")
            adding = pool.submit(shop.store.quarantined_rows.add, snapshot, 0, [row])
            assert eventually(lambda: query(database, IS_WAITING) == [(1,)])
            mark_stale(connection, [shop.orders.table_id], "a gap")
        with pytest.raises(StaleEpoch, match="the snapshot first is abandoned"):
            adding.result()


def test_a_replay_waits_for_a_rebuild_before_it_locks_its_lease(database: str) -> None:
    """A rebuild locks the stream, then the leases; in another order each would wait for the other."""
    with opened_shop(database) as shop, ThreadPoolExecutor(1) as pool:
        shop.register_orders(1)
        lease, end = shop.acquire(), shop.store.streams.chain_position("shop")
        new = replace(shop.slice(shop.orders.table_id, 1, 1, 0, "late"), late=True)
        late = LateSlice(slice=new, slice_id="late", events=())
        with shop.engine.begin() as connection:
            lock_stream(connection, "shop")
            replaying = pool.submit(shop.store.quarantine.replay, late, end, lease)
            assert eventually(lambda: query(database, IS_WAITING) == [(1,)])
            connection.exec_driver_sql("SELECT FROM cdc.lease FOR UPDATE NOWAIT")
        assert replaying.result() == 3


@pytest.mark.parametrize("is_removed", [False, True], ids=["check", "removal"])
def test_a_removal_waits_for_a_worker_before_it_locks_the_table(database: str, *, is_removed: bool) -> None:
    """A worker locks its lease, then the table, of which it then records a claim."""
    with opened_shop(database) as shop, ThreadPoolExecutor(1) as pool:
        lease, removal = shop.acquire(), shop.store.removal
        with shop.engine.begin() as connection:
            hold_lease(connection, lease)
            remove = removal.remove_table if is_removed else removal.check_idle
            removing = pool.submit(remove, "shop", shop.orders.name)
            assert eventually(lambda: query(database, IS_WAITING) == [(1,)])
            connection.exec_driver_sql("SELECT FROM cdc.source_table FOR KEY SHARE NOWAIT")
        with pytest.raises(LeaseBusy, match="worker is at work until"):
            removing.result()


def test_a_removal_finds_a_first_lease_that_somebody_takes_meanwhile(database: str) -> None:
    take = "INSERT INTO cdc.lease SELECT table_id, 'new', 1, now() + interval '1 h', now(), now() FROM cdc.source_table"
    with opened_shop(database) as shop, ThreadPoolExecutor(1) as pool:
        with shop.engine.begin() as connection:
            connection.exec_driver_sql(take)
            removing = pool.submit(shop.store.removal.remove_table, "shop", shop.orders.name)
            assert eventually(lambda: query(database, IS_WAITING) == [(1,)])
        with pytest.raises(LeaseBusy, match="new is at work until"):
            removing.result()


def test_a_cut_moves_all_of_its_stream_partitions_in_one_round_trip(database: str) -> None:
    """Other consumers of the stream wait for as long as the round trips take."""
    messages = list[bytes]()
    with opened_shop(database) as shop:

        @event.listens_for(shop.engine, "after_cursor_execute")
        def note(_c: object, cursor: psycopg2.extensions.cursor, sql: str, _p: object, _o: object, _m: object) -> None:
            if sql.startswith("UPDATE cdc.stream_partition SET next_offset"):
                messages.append(cursor.query or b"")  # what was sent last

        shop.register_orders(1)
        partitions = [row["next_offset"] for row in shop.store.inspection.run("partitions")]
    assert [message.count(b"UPDATE cdc.stream_partition") for message in messages] == [len(partitions)]
    assert (len(partitions), len(set(partitions))) == (2, 1)


def test_a_deadlock_fails_one_of_two_and_is_worth_another_try(database: str) -> None:
    lock, both = "SELECT FROM cdc.source_table WHERE table_name = '{}' FOR UPDATE", Barrier(2)
    with opened_shop(database) as shop, ThreadPoolExecutor(2) as pool:

        def locked(first: str, second: str) -> str:
            try:
                with Database(engine=shop.engine).transaction("test") as connection:
                    connection.exec_driver_sql(lock.format(first))
                    both.wait()
                    connection.exec_driver_sql(lock.format(second))
            except StoreAway as error:
                return str(error)
            return ""

        fine, failed = sorted(pool.map(locked, ("orders", "customers"), ("customers", "orders")))
    assert fine == ""
    assert "waited for another one, which waited for it: deadlock" in failed
