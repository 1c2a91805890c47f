"""The slice worker over a real metadata store and a fast lake: what it claims, how far it goes, and where it stops."""

from dataclasses import replace
from datetime import timedelta

from cdc_pipeline.apply.claim_work import ClaimLimits
from cdc_pipeline.metadata_store.states import SliceState
from cdc_pipeline.record import TableName, encode_position
from cdc_pipeline.steps import Moment
from cdc_pipeline.time_slice import label_of
from tests.support.metadata_store import MINUTE, MORNING
from tests.support.slice_work import Work
from tests.support.version_vector import version_vector


def test_many_waiting_slices_are_applied_in_one_commit(work: Work) -> None:
    for _ in range(20):
        work.cut(2, 1)
    applied = work.worker().slice_to_lake(work.table.name)
    assert [(outcome.counts.read, outcome.counts.inserted) for outcome in applied.outcomes] == [(60, 60)]
    assert work.claims() == [(1, 40)]
    assert len(work.lake.rows(work.table)) == 60
    assert {row.state for row in work.slices()} == {SliceState.APPLIED}
    assert applied.ended == "every event that is registered is applied"


def test_after_the_last_claim_of_a_table_with_a_key_the_lake_is_not_read_again(work: Work) -> None:
    """On S3 a look at the lake's log alone takes some ten requests."""
    for _ in range(2):
        work.cut(1, 1)
    steps = list[tuple[str, Moment]]()
    few = ClaimLimits(slices=2, rows=1_000)
    applied = work.worker(few, on_step=lambda *at: steps.append(at)).slice_to_lake(work.table.name)
    assert (work.claims(), applied.ended) == ([(1, 2), (3, 4)], "every event that is registered is applied")
    assert steps.count(("fence.read", Moment.BEFORE)) == 2 + 2  # before each claim, and within it


def test_a_claim_takes_no_more_slices_or_rows_than_it_may(work: Work) -> None:
    for _ in range(4):
        work.cut(1, 1)
    work.worker(ClaimLimits(slices=4, rows=1_000)).slice_to_lake(work.table.name)
    assert work.claims() == [(1, 4), (5, 8)]
    for _ in range(4):
        work.cut(3, 3)
    work.worker(ClaimLimits(slices=100, rows=12)).slice_to_lake(work.table.name)
    assert work.claims()[2:] == [(9, 12), (13, 16)]


def test_a_boundary_is_never_parted(work: Work) -> None:
    work.cut(5, 5)
    work.cut(5, 5)
    work.worker(ClaimLimits(slices=1, rows=1)).slice_to_lake(work.table.name)
    assert work.claims() == [(1, 2), (3, 4)]


def test_until_leaves_what_is_labelled_later(work: Work) -> None:
    for _ in range(3):
        work.cut(1)
    third = work.slices()[-1].label_start
    work.worker().slice_to_lake(work.table.name, until=third)
    assert work.claims() == [(1, 2)]
    work.worker().slice_to_lake(work.table.name, until=third)
    assert work.fence() == 2
    work.worker().slice_to_lake(work.table.name, until=third + timedelta(seconds=1))
    assert work.claims() == [(1, 2), (3, 3)]
    work.worker().slice_to_lake(work.table.name, until=MORNING)
    assert work.fence() == 3


def test_until_leaves_every_slice_behind_one_that_is_labelled_later(work: Work) -> None:
    """Each consumer of a shared stream has labels of its own, and registers at its own pace."""
    shop = work.shop
    for partition, minutes in enumerate((2, 1)):
        work.position += 1
        plain = shop.cut(work.position - 1, work.position, {(shop.orders.table_id, partition): 0})
        own = replace(plain.partitions[partition], start_offset=encode_position(0))
        label = label_of(MORNING + minutes * MINUTE, MINUTE)
        cut = replace(plain, label=label, partitions=(own,), slices=(work.slice(partition, 1),))
        shop.store.registration.register(cut, None)
    ahead, behind = work.slices()
    assert behind.label_start < ahead.label_start
    applied = work.worker().slice_to_lake(work.table.name, until=ahead.label_start)
    assert (applied.outcomes, applied.ended) == (
        (),
        f"slices from {ahead.label_start.isoformat()} on are left, as asked for",
    )
    work.worker().slice_to_lake(work.table.name, until=ahead.label_end)
    assert work.claims() == [(1, 2)]


def test_a_silence_makes_no_slice_and_no_new_lake_version(work: Work) -> None:
    work.cut(1)
    work.worker().slice_to_lake(work.table.name)
    before = work.lake.read_version(work.table)
    for _ in range(5):
        work.cut(0)
    assert work.worker().slice_to_lake(work.table.name).outcomes == ()
    assert work.lake.read_version(work.table) == before
    work.cut(1)
    work.worker().slice_to_lake(work.table.name)
    assert work.claims() == [(1, 1), (2, 2)]


def test_no_claim_reaches_over_a_requested_boundary(work: Work) -> None:
    work.cut(1)
    work.cut(1, requested=True)
    work.cut(1)
    work.cut(0, requested=True)
    work.cut(1)
    work.worker().slice_to_lake(work.table.name)
    assert work.claims() == [(1, 2), (3, 3), (4, 4)]


def test_a_requested_boundary_without_a_slice_of_the_table_has_a_lake_version(work: Work) -> None:
    work.cut(1)
    work.cut(0, requested=True)
    work.cut(1)
    work.worker().slice_to_lake(work.table.name)
    asked = work.shop.store.lake_positions.boundary_at("shop", encode_position(2))
    assert asked is not None
    version = version_vector(work.shop.store, asked.boundary_id)[work.shop.orders.table_id]
    assert version == work.lake.commits(work.table)[-2].version


def test_a_table_without_a_published_snapshot_is_left_alone(work: Work) -> None:
    table = TableName(database="shop", schema="public", table="customers")
    other = replace(work.table, name=table, table_uuid=str(work.shop.customers.table_uuid))
    worker = work.worker()
    ended = replace(worker, work=replace(worker.work, lake_table=lambda _name: other)).slice_to_lake(table).ended
    assert ended == "the table has no published snapshot yet"


def test_the_metadata_store_says_up_to_which_position_the_lake_is(work: Work) -> None:
    work.cut(1)
    work.cut(0)
    work.worker().slice_to_lake(work.table.name)
    position = work.shop.store.lake_positions.lake_position(work.shop.orders.table_id)
    assert position.position == encode_position(2)
