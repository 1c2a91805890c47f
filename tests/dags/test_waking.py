"""What wakes a table's worker: the backlog in the store, asked for all tables at once."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cdc_pipeline.metadata_store.ledger.backlogs import Backlog, backlogs
from cdc_pipeline.metadata_store.states import SnapshotState, TaskKind
from cdc_pipeline.operations.source_setup.registered import RegisteredStream
from cdc_pipeline.operations.source_setup.stale_tables import StaleMarks
from cdc_pipeline.settings.installation.ports import free_port
from cdc_pipeline.sources.protocol import SourceCapabilities
from snapshot.hand_offs import new_tasks
from tests.dags.airflow_process import RESULT, Airflow
from tests.support.metadata_store import STREAM, Shop, opened_shop
from tests.support.streams import run_sql

ORDERS, CUSTOMERS = "shop.public.orders", "shop.public.customers"
AT_ONCE = timedelta(milliseconds=10)
HANG_UP = """
    SELECT pg_terminate_backend(pid)
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%is_leased%'
    """


@pytest.fixture
def shop(store_url: str) -> Iterator[Shop]:
    """Both tables are live."""
    with opened_shop(store_url) as shop:
        run_sql(store_url, "UPDATE cdc.source_table SET state = 'live'")
        yield shop


def register_both(shop: Shop, end: int) -> None:
    rows = {(shop.orders.table_id, 0): 3, (shop.customers.table_id, 1): 2}
    shop.register(shop.cut(end - 1, end, rows))


async def first_that(
    stream: AsyncGenerator[Mapping[str, Backlog]], wanted: Callable[[Mapping[str, Backlog]], bool]
) -> Mapping[str, Backlog]:
    async with aclosing(stream), asyncio.timeout(30):
        return await anext(found async for found in stream if wanted(found))


def first(shop: Shop) -> Mapping[str, Backlog]:
    stream = backlogs(lambda: shop.url, STREAM.name, poll_interval=AT_ONCE)
    return asyncio.run(first_that(stream, lambda _: True))


def test_one_answer_holds_every_table_that_waited_before_anybody_asked(shop: Shop) -> None:
    register_both(shop, 1)
    register_both(shop, 2)
    newest = {row.table_id: row.number for row in shop.store.slices.slices(shop.orders.table_id, 1, 99) if row.rows}
    found = first(shop)
    assert set(found) == {ORDERS, CUSTOMERS}
    assert found[ORDERS] == Backlog(newest=newest[shop.orders.table_id], is_leased=False)


def test_a_table_whose_name_has_a_dot_is_found_by_the_name_that_its_watcher_has(shop: Shop) -> None:
    register_both(shop, 1)
    run_sql(
        shop.url,
        f"UPDATE cdc.source_table SET table_name = 'order.items' WHERE table_id = {shop.orders.table_id}",
        f"UPDATE cdc.source_table SET snapshot_wanted = true WHERE table_id = {shop.customers.table_id}",
    )
    assert set(first(shop)) == {'shop.public."order.items"', CUSTOMERS}


def want_snapshot_of_orders(shop: Shop) -> None:
    shop.store.stale_tables.mark(shop.orders.table_id, "its columns changed", snapshot_wanted=True)


def later(shop: Shop, minutes: float) -> None:
    """As if so much time had passed since everything that is known of snapshots."""
    ago = f"- interval '1 minute' * {minutes}"
    run_sql(
        shop.url,
        f"UPDATE cdc.snapshot SET started_at = started_at {ago}, finished_at = finished_at {ago}",
        f"UPDATE cdc.snapshot_task SET created_at = created_at {ago}, lease_expires_at = lease_expires_at {ago}",
    )


def test_wanted_snapshots_that_fail_in_a_row_begin_ever_more_rarely_until_one_is_published(shop: Shop) -> None:
    want_snapshot_of_orders(shop)
    for number in range(3):
        assert set(first(shop)) == {ORDERS}
        shop.store.snapshots.create_snapshot(shop.new_snapshot(1, snapshot_id=str(number)))
        assert first(shop) == {}
        shop.store.snapshots.set_snapshot_state(str(number), SnapshotState.FAILED, error="out of memory")
        later(shop, 0.9 * 2**number)
        assert first(shop) == {}
        later(shop, 0.2 * 2**number)
    shop.publish(shop.acquire(), 1, snapshot_id="by hand")
    want_snapshot_of_orders(shop)
    assert set(first(shop)) == {ORDERS}


def test_a_wanted_snapshot_whose_processes_died_wakes_again(shop: Shop) -> None:
    want_snapshot_of_orders(shop)
    shop.store.snapshots.create_snapshot(shop.new_snapshot(1))
    shop.store.snapshot_tasks.add_tasks("first", new_tasks(TaskKind.EXPORT, [{}]))
    later(shop, 20)
    assert set(first(shop)) == {ORDERS}
    tasks, lease = shop.store.snapshot_tasks, timedelta(minutes=20)
    assert tasks.claim_task(slot="a slot", duration=lease, snapshot_ids=["first"], kinds=[TaskKind.EXPORT])
    assert first(shop) == {}
    later(shop, 36)
    assert set(first(shop)) == {ORDERS}
    shop.acquire()
    assert first(shop) == {}


def test_a_table_that_is_taken_out_of_the_pipeline_wants_no_snapshot_any_more(shop: Shop) -> None:
    want_snapshot_of_orders(shop)
    listed = RegisteredStream(name=STREAM.name, listed=frozenset({shop.customers.name}), store=shop.store)
    marks = StaleMarks(
        registered=listed, capabilities=SourceCapabilities(copies_tables=True), followed=frozenset(), store=shop.store
    )
    marks.note_unlisted()
    assert first(shop) == {}


def test_silence_and_tables_that_are_not_live_wake_nobody(shop: Shop) -> None:
    register_both(shop, 1)
    shop.register(shop.cut(1, 2, {(shop.customers.table_id, 0): 0}))
    run_sql(
        shop.url,
        "UPDATE cdc.slice SET state = 'applied' WHERE table_id = " + str(shop.customers.table_id) + " AND rows > 0",
        f"UPDATE cdc.source_table SET state = 'registered', shape = '[{{}}]' WHERE table_id = {shop.orders.table_id}",
    )
    assert first(shop) == {}


def test_a_table_whose_source_has_no_catalogue_is_woken_for_its_first_slices(shop: Shop) -> None:
    """Its first slice run begins its lake table, and the next one goes on with what a killed one has left."""
    register_both(shop, 1)
    run_sql(shop.url, "UPDATE cdc.source_table SET state = 'registered'")
    assert set(first(shop)) == {ORDERS, CUSTOMERS}
    shop.store.snapshots.create_snapshot(shop.new_snapshot(0))
    assert set(first(shop)) == {ORDERS, CUSTOMERS}
    run_sql(shop.url, "UPDATE cdc.snapshot SET exported_snapshot = 'files of another program'")
    assert set(first(shop)) == {CUSTOMERS}
    shop.store.snapshots.set_snapshot_state("first", SnapshotState.ABANDONED)
    assert set(first(shop)) == {ORDERS, CUSTOMERS}


def test_a_table_that_pauses_wakes_nobody_before_its_next_try(shop: Shop) -> None:
    register_both(shop, 1)
    run_sql(
        shop.url,
        "INSERT INTO cdc.failing_table SELECT table_id, 1, now(), now(), now() + interval '1 hour', false, 'x'"
        " FROM cdc.source_table",
        f"UPDATE cdc.source_table SET state = 'parked' WHERE table_id = {shop.orders.table_id}",
    )
    assert first(shop) == {}
    run_sql(shop.url, "UPDATE cdc.failing_table SET next_try_at = now()")
    assert set(first(shop)) == {ORDERS, CUSTOMERS}


def test_a_table_with_a_holder_is_told_apart(shop: Shop) -> None:
    register_both(shop, 1)
    shop.acquire()
    found = first(shop)
    assert (found[ORDERS].is_leased, found[CUSTOMERS].is_leased) == (True, False)


def test_an_old_request_keeps_a_table_asleep_only_while_a_resident_worker_is_alive(shop: Shop) -> None:
    register_both(shop, 1)
    requests = shop.store.slice_requests
    requests.ask(UUID(int=1), shop.orders.name, by_hand=False)
    assert first(shop)[ORDERS].is_leased
    run_sql(shop.url, "UPDATE cdc.slice_request SET requested_at = requested_at - interval '3 minutes'")
    assert not first(shop)[ORDERS].is_leased
    requests.renew("a worker", duration=timedelta(minutes=1))
    assert first(shop)[ORDERS].is_leased
    assert requests.take("a worker", running=[]) is not None
    assert first(shop)[ORDERS].is_leased
    run_sql(shop.url, "UPDATE cdc.resident_worker SET expires_at = now()")
    assert not first(shop)[ORDERS].is_leased


def test_it_goes_on_when_the_store_comes_back_elsewhere(shop: Shop) -> None:
    register_both(shop, 1)
    urls = iter([f"postgresql://nobody@127.0.0.1:{free_port()}/gone", shop.url])
    stream = backlogs(lambda: next(urls), STREAM.name, poll_interval=AT_ONCE)
    assert set(asyncio.run(first_that(stream, bool))) == {ORDERS, CUSTOMERS}


def test_it_goes_on_when_its_connection_is_cut(shop: Shop) -> None:
    async def cut_then_register() -> None:
        async with aclosing(backlogs(lambda: shop.url, STREAM.name, poll_interval=AT_ONCE)) as stream:
            assert await anext(stream) == {}
            await asyncio.to_thread(run_sql, shop.url, HANG_UP)
            await asyncio.to_thread(register_both, shop, 1)
            async with asyncio.timeout(30):
                assert await anext(found async for found in stream if found)

    asyncio.run(cut_then_register())


def test_parameters_that_only_other_drivers_know_keep_no_table_asleep(shop: Shop) -> None:
    register_both(shop, 1)
    of_libpq = "connect_timeout=5&keepalives_idle=9&channel_binding=prefer&options=-c%20geqo%3Doff&sslmode=prefer"
    stream = backlogs(lambda: f"{shop.url}?{of_libpq}", STREAM.name, poll_interval=AT_ONCE)
    assert set(asyncio.run(first_that(stream, bool))) == {ORDERS, CUSTOMERS}


@pytest.mark.xdist_group("airflow")
def test_the_trigger_in_airflow_wakes_each_table_for_what_waited_before_it_started(
    shop: Shop, airflow: Airflow, tmp_path: Path
) -> None:
    register_both(shop, 1)
    with watched(shop, airflow, tmp_path, ORDERS, CUSTOMERS) as events:
        assert {next(events)["table"] for _ in range(2)} == {ORDERS, CUSTOMERS}
        register_both(shop, 2)
        assert {next(events)["table"] for _ in range(2)} == {ORDERS, CUSTOMERS}


@pytest.mark.xdist_group("airflow")
def test_a_snapshot_run_starts_for_tables_of_the_pipeline_alone_whatever_an_older_consumer_wants(
    shop: Shop, airflow: Airflow, tmp_path: Path
) -> None:
    run_sql(shop.url, "UPDATE cdc.source_table SET snapshot_wanted = true")
    with watched(shop, airflow, tmp_path, CUSTOMERS) as events:
        assert next(events) == {"tables": [CUSTOMERS]}


@contextmanager
def watched(shop: Shop, airflow: Airflow, folder: Path, *tables: str) -> Iterator[Iterator[Any]]:
    """What the triggers of these tables report in a process of Airflow, as it comes."""
    config = folder / "pipeline.yml"
    config.write_text(
        "name: shop\nlake: lake\nspark: sc://nowhere:1\n"
        "source: {kind: postgres, url: 'postgresql://nowhere/shop'}\ntables: [{name: shop.public.orders}]\n"
    )
    with airflow.process(
        "watch_slices", STREAM.name, *tables, CDC_CONFIG=str(config), CDC_METADATA_STORE=shop.url
    ) as process:
        assert process.stdout is not None
        yield (json.loads(line.removeprefix(RESULT)) for line in process.stdout if line.startswith(RESULT))
