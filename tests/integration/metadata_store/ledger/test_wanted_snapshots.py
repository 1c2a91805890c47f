"""When the next snapshot of a table begins by itself."""

from dataclasses import replace
from datetime import timedelta

from cdc_pipeline.metadata_store.states import TaskKind
from snapshot.hand_offs import new_tasks
from tests.support.metadata_store import Shop, opened_shop
from tests.support.streams import run_sql


def test_a_wanted_snapshot_whose_tasks_wait_behind_a_neighbours_has_a_run(store_url: str) -> None:
    with opened_shop(store_url) as shop:
        check_signs(shop)


def check_signs(shop: Shop) -> None:
    store, orders = shop.store, shop.orders.table_id
    store.stale_tables.mark(orders, "its columns changed", snapshot_wanted=True)
    customers = replace(shop.new_snapshot(1, snapshot_id="t-run-1"), table_id=shop.customers.table_id)
    for snapshot in (customers, shop.new_snapshot(1, snapshot_id="t-run-2")):
        store.snapshots.create_snapshot(snapshot)
        store.snapshot_tasks.add_tasks(snapshot.snapshot_id, new_tasks(TaskKind.EXPORT, [{}]))
    assert store.stale_tables.wanting_snapshot() == frozenset()
    ago = "- interval '20 minutes'"
    run_sql(
        shop.url,
        f"UPDATE cdc.snapshot SET started_at = started_at {ago}",
        f"UPDATE cdc.snapshot_task SET created_at = created_at {ago}",
    )
    assert store.stale_tables.wanting_snapshot() == {orders}
    assert store.snapshot_tasks.claim_task(
        slot="a slot", duration=timedelta(minutes=20), snapshot_ids=["t-run-1"], kinds=[TaskKind.EXPORT]
    )
    assert store.stale_tables.wanting_snapshot() == frozenset()
