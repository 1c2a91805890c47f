"""A cut whose file is in the bucket, and whose consumer was killed before it registered the cut."""

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from cdc_pipeline.areas import cut_key
from cdc_pipeline.consume.cut_chain import CutChain
from cdc_pipeline.consume.cut_file import TableIdentity, cut_file
from cdc_pipeline.errors import RegistryError, StreamMoved
from cdc_pipeline.metadata_store.ledger.cut import BEGINNING, Cut, LateSlice
from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import encode_position
from cdc_pipeline.steps import no_step
from cdc_pipeline.time_slice import label_of
from tests.support.metadata_store import MINUTE, MORNING, SCHEMA, SETTINGS, STREAM, Shop, opened_shop


def chain_of(shop: Shop, folder: Path) -> CutChain:
    return CutChain(name=STREAM.name, objects=LocalObjectStore(folder), store=shop.store, on_step=no_step)


def cut_of(shop: Shop, start: int) -> Cut:
    return shop.cut(start, start + 1, {(shop.orders.table_id, 0): 5, (shop.customers.table_id, 1): 5})


def register(chain: CutChain, shop: Shop, cut: Cut, chain_position: str = BEGINNING) -> str:
    return chain.register(cut, shop.assignment, chain_position, {shop.schema_id: SCHEMA}).chain_position


def decide(chain: CutChain, shop: Shop, cut: Cut) -> None:
    """As the consumer does before it registers the cut: the cut file is put under a chain position of its own."""
    identities = {row.table_id: TableIdentity.of(row) for row in shop.store.tables.tables()}
    content = cut_file(STREAM, identities, {shop.schema_id: SCHEMA}, cut).to_bytes()
    chain.objects.put_if_absent(cut_key(STREAM.name, shop.store.streams.chain_position(STREAM.name)), content)


def publish(shop: Shop, cutoff: int, *, snapshot_id: str, lake_version: int = 1) -> None:
    lease = shop.acquire(snapshot_id)
    shop.publish(lease, cutoff, snapshot_id=snapshot_id, lake_version=lake_version)
    shop.store.leases.release(lease)


def orders_of(shop: Shop) -> SourceTable:
    return shop.store.tables.table_by_id(shop.orders.table_id)


def read_again(shop: Shop, mark: str, *, source_oid: int | None = None) -> None:
    """Orders become stale, and their changes are read for the coming snapshot."""
    stale, table_id = shop.store.stale_tables, shop.orders.table_id
    stale.mark(table_id, "its columns changed", snapshot_wanted=True)
    stale.begin_again(table_id, source_oid=source_oid or shop.orders.source_oid, settings=SETTINGS, published_as=mark)


def test_a_table_whose_snapshot_was_published_since_the_cut_stays_live(store_url: str, tmp_path: Path) -> None:
    with opened_shop(store_url) as shop:
        chain = chain_of(shop, tmp_path)
        register(chain, shop, cut_of(shop, 0))
        publish(shop, 1, snapshot_id="first")
        read_again(shop, "new")
        decide(chain, shop, cut_of(shop, 1))
        publish(shop, 2, snapshot_id="second", lake_version=2)
        before = orders_of(shop)
        assert (before.state, before.published_as) == (TableState.LIVE, "new")
        assert chain.catch_up() == 1
        after = orders_of(shop)
        assert (after.state, after.published_as, after.halted_at) == (TableState.LIVE, "new", None)


def test_a_table_that_was_made_anew_since_the_cut_keeps_its_new_identity(store_url: str, tmp_path: Path) -> None:
    with opened_shop(store_url) as shop:
        chain = chain_of(shop, tmp_path)
        register(chain, shop, cut_of(shop, 0))
        publish(shop, 1, snapshot_id="first")
        decide(chain, shop, cut_of(shop, 1))
        read_again(shop, "new", source_oid=17_000)
        publish(shop, 2, snapshot_id="second", lake_version=2)
        assert chain.catch_up() == 1
        after = orders_of(shop)
        assert (after.state, after.source_oid, after.published_as) == (TableState.LIVE, 17_000, "new")


def test_a_table_that_became_stale_since_the_cut_is_not_read_again(store_url: str, tmp_path: Path) -> None:
    with opened_shop(store_url) as shop:
        chain = chain_of(shop, tmp_path)
        register(chain, shop, cut_of(shop, 0))
        publish(shop, 1, snapshot_id="first")
        decide(chain, shop, cut_of(shop, 1))
        shop.store.stale_tables.mark(shop.orders.table_id, "its records are deleted")
        assert chain.catch_up() == 1
        after = orders_of(shop)
        assert (after.state, after.published_as) == (TableState.STALE, None)
        assert after.state_reason == "its records are deleted"


def test_a_store_that_is_older_than_the_cut_learns_that_the_table_is_stale(store_url: str, tmp_path: Path) -> None:
    """The first snapshot, and what made the table stale, were behind the backup from which the store was restored."""
    with opened_shop(store_url) as shop:
        chain = chain_of(shop, tmp_path)
        register(chain, shop, cut_of(shop, 0))
        publish(shop, 1, snapshot_id="first")
        older = orders_of(shop)
        read_again(shop, "new")
        decide(chain, shop, cut_of(shop, 1))
        with shop.engine.begin() as connection:
            connection.execute(
                text(
                    "UPDATE cdc.source_table SET state = :state, state_reason = NULL, published_as = :mark,"
                    " cutoff_offset = NULL, halted_at = NULL WHERE table_id = :table"
                ),
                {"state": TableState.REGISTERED, "mark": older.published_as, "table": older.table_id},
            )
        assert chain.catch_up() == 1
        after = orders_of(shop)
        assert (after.state, after.published_as) == (TableState.STALE, "new")
        assert after.state_reason == "its columns changed"


def test_a_decided_cut_with_an_earlier_label_is_registered_and_the_later_label_counts(
    store_url: str, tmp_path: Path
) -> None:
    """A consumer with another slice length put it, when labels could still go back then."""
    with opened_shop(store_url) as shop:
        chain = chain_of(shop, tmp_path)
        register(chain, shop, cut_of(shop, 0))
        decide(chain, shop, replace(cut_of(shop, 1), label=label_of(MORNING, 5 * MINUTE)))
        assert chain.catch_up() == 1
        assignment = shop.store.streams.take_stream(STREAM.name, owner="next", first_offset="")
        assert assignment.label == label_of(MORNING + MINUTE, MINUTE)


def test_a_decided_cut_with_an_event_below_a_horizon_stops_its_table_alone(store_url: str, tmp_path: Path) -> None:
    with opened_shop(store_url) as shop:
        chain = chain_of(shop, tmp_path)
        register(chain, shop, cut_of(shop, 0))
        publish(shop, 1, snapshot_id="first")
        shop.store.tombstone_horizons.promise(shop.orders.table_id, "5")
        cut = cut_of(shop, 1)
        decide(chain, shop, replace(cut, slices=tuple(replace(new, oldest_version="4") for new in cut.slices)))
        assert chain.catch_up() == 1
        after = orders_of(shop)
        assert (after.state, after.halted_at) == (TableState.STALE, encode_position(1))
        assert "came below its horizon" in str(after.state_reason)
        assert shop.store.tables.table_by_id(shop.customers.table_id).state is TableState.REGISTERED
        register(chain, shop, cut_of(shop, 2), shop.store.streams.chain_position(STREAM.name))


def test_a_cut_with_an_event_below_a_horizon_is_not_decided(store_url: str, tmp_path: Path) -> None:
    with opened_shop(store_url) as shop:
        chain = chain_of(shop, tmp_path)
        chain_position = register(chain, shop, cut_of(shop, 0))
        shop.store.tombstone_horizons.promise(shop.orders.table_id, "5")
        cut = cut_of(shop, 1)
        late = replace(cut, slices=tuple(replace(new, oldest_version="4") for new in cut.slices))
        with pytest.raises(StreamMoved, match="goes back to the version 4; expected none below 5"):
            register(chain, shop, late, chain_position)
        assert chain.read(chain_position) is None


def test_a_decided_late_slice_below_a_horizon_stops_its_table_alone(store_url: str, tmp_path: Path) -> None:
    with opened_shop(store_url) as shop:
        chain = chain_of(shop, tmp_path)
        chain_position = register(chain, shop, cut_of(shop, 0))
        publish(shop, 1, snapshot_id="first")
        shop.store.tombstone_horizons.promise(shop.orders.table_id, "5")
        new = replace(shop.slice(shop.orders.table_id, 1, 1, 0, "late"), late=True, oldest_version="4")
        for _ in range(2):
            shop.store.quarantine.replay(LateSlice(slice=new, slice_id="late"), chain_position, None)
            after = orders_of(shop)
            assert (after.state, "came below its horizon" in str(after.state_reason)) == (TableState.STALE, True)
        assert shop.store.tables.table_by_id(shop.customers.table_id).state is not TableState.STALE
        register(chain, shop, cut_of(shop, 1), chain_position)


def test_a_decided_late_slice_does_not_take_back_that_a_stale_table_wants_a_snapshot(
    store_url: str, tmp_path: Path
) -> None:
    with opened_shop(store_url) as shop:
        chain_position = register(chain_of(shop, tmp_path), shop, cut_of(shop, 0))
        publish(shop, 1, snapshot_id="first")
        shop.store.tombstone_horizons.promise(shop.orders.table_id, "5")
        shop.store.stale_tables.mark(shop.orders.table_id, "its columns changed", snapshot_wanted=True)
        before = orders_of(shop)
        new = replace(shop.slice(shop.orders.table_id, 1, 1, 0, "late"), late=True, oldest_version="4")
        shop.store.quarantine.replay(LateSlice(slice=new, slice_id="late"), chain_position, None)
        assert orders_of(shop) == replace(before, next_slice_number=before.next_slice_number + 1)


def test_a_consumer_of_a_table_that_is_removed_opens_the_stream_again(store_url: str, tmp_path: Path) -> None:
    with opened_shop(store_url) as shop:
        chain = chain_of(shop, tmp_path)
        chain_position = register(chain, shop, cut_of(shop, 0))
        assert shop.store.removal.remove_table(STREAM.name, shop.customers.name)
        with pytest.raises(StreamMoved, match=r"tables .* are not registered any more: 1 of 2"):
            register(chain, shop, cut_of(shop, 1), chain_position)
        assert chain.read(chain_position) is None


def test_a_lake_without_the_stream_s_cut_files_is_another_one_and_nothing_is_written_to_it(
    store_url: str, tmp_path: Path
) -> None:
    """Its mount may be away, or pipeline.yml name another one."""
    with opened_shop(store_url) as shop:
        chain = chain_of(shop, tmp_path / "lake")
        register(chain, shop, cut_of(shop, 0))
        (tmp_path / "lake").rename(tmp_path / "away")
        with pytest.raises(RegistryError, match="has no cut file of the stream shop, of which cuts are registered"):
            chain.catch_up()
        assert not (tmp_path / "lake").exists()
        (tmp_path / "away").rename(tmp_path / "lake")
        assert chain.catch_up() == 0
