"""The slice worker over a real metadata store and a fast lake: what it claims, how far it goes, and where it stops."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from cdc_pipeline.apply.claim_work import ClaimLimits
from cdc_pipeline.apply.slice_to_lake import SliceWorker
from cdc_pipeline.areas import slice_key
from cdc_pipeline.errors import LakeError, StaleEpoch
from cdc_pipeline.lake.protocol import ClaimWork, LakePublication, LakeTable, SliceInput
from cdc_pipeline.metadata_store.ledger.cut import Slice
from cdc_pipeline.metadata_store.ledger.records import RegisteredSlice
from cdc_pipeline.metadata_store.states import SliceState
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Operation, TableName, encode_position, encode_version
from cdc_pipeline.steps import Moment, OnStep, no_step
from tests.support.fold.model import Event
from tests.support.lake import NOW, slice_bytes
from tests.support.memory_lake import MemoryLake
from tests.support.metadata_store import MINUTE, MORNING, SCHEMA, Shop, opened_shop

EVERYTHING = ClaimLimits(slices=1_000, rows=1_000_000)


@dataclass(kw_only=True)
class Work:
    """Orders, published empty at position 0. Cut n is labelled by the minute that ends n minutes after MORNING."""

    shop: Shop
    objects: LocalObjectStore
    lake: MemoryLake
    position: int = field(default=0)

    @property
    def table(self) -> LakeTable:
        row = self.shop.orders
        return LakeTable(name=row.name, table_uuid=str(row.table_uuid), schema=SCHEMA)

    def worker(self, limits: ClaimLimits = EVERYTHING, on_step: OnStep = no_step) -> SliceWorker:
        return SliceWorker(
            owner=str(uuid4()),
            lease_length=MINUTE,
            limits=limits,
            store=self.shop.store,
            objects=self.objects,
            lake=MemoryLake(store=self.objects, clock=lambda: NOW, on_step=on_step),
            lake_table=lambda _name: self.table,
            new_id=uuid4,
            on_step=on_step,
        )

    def cut(self, *rows: int, requested: bool = False, as_before: bool = False) -> None:
        """One slice with so many rows per stream partition; 0: none, or with `as_before` an empty one."""
        self.position += 1
        table_id = self.shop.orders.table_id
        plain = self.shop.cut(
            self.position - 1, self.position, {(table_id, part): 0 for part in (0, 1)}, requested=requested
        )
        slices = [self.slice(part, count) for part, count in enumerate(rows) if count or as_before]
        self.shop.register(replace(plain, slices=tuple(slices)))

    def slice(self, partition: int, rows: int) -> Slice:
        empty = Slice(table_id=self.shop.orders.table_id, stream_partition=partition)
        if rows == 0:
            return empty
        events = [self.order(1000 * self.position + 100 * partition + number, number) for number in range(rows)]
        content = slice_bytes(SCHEMA, events)
        sha256 = hashlib.sha256(content).hexdigest()
        key = slice_key(self.table.name, partition, f"{self.position}-{sha256}.parquet")
        self.objects.put_if_absent(key, content)
        return replace(
            empty, path=key, sha256=sha256, size_bytes=len(content), rows=rows, schema_id=self.shop.schema_id
        )

    def order(self, id_: int, ordinal: int) -> Event:
        version = encode_version(self.position, ordinal + 1)
        return Event(operation=Operation.INSERT, version=version, id=(id_,), values={"note": "n"})

    def fence(self) -> int:
        fence = self.lake.read_fence(self.table)
        assert fence is not None
        return fence.number

    def claims(self) -> list[tuple[int, int]]:
        """Bounds of every commit of the lake that applied something, in order."""
        metadata = [commit.user_metadata for commit in self.lake.commits(self.table)]
        return [(found["first"], found["last"]) for found in metadata if "claim_id" in found]

    def slices(self) -> Sequence[RegisteredSlice]:
        return self.shop.store.slices.slices(self.shop.orders.table_id, 1, 1_000)


@pytest.fixture
def work(database: str, tmp_path: Path) -> Iterator[Work]:
    objects = LocalObjectStore(tmp_path)
    lake = MemoryLake(store=objects, clock=lambda: NOW, on_step=no_step)
    with opened_shop(database) as shop:
        work = Work(shop=shop, objects=objects, lake=lake)
        lake.create_table(work.table)
        lake.publish(work.table, LakePublication(snapshot_id="first", files=(), fence_number=0))
        lease = shop.acquire()
        shop.publish(lease, 0)
        shop.store.leases.release(lease)
        yield work


def test_many_waiting_slices_are_applied_in_one_commit(work: Work) -> None:
    for _ in range(20):
        work.cut(2, 1)
    applied = work.worker().slice_to_lake(work.table.name)
    assert [(outcome.rows_read, outcome.inserted) for outcome in applied.outcomes] == [(60, 60)]
    assert work.claims() == [(1, 40)]
    assert len(work.lake.rows(work.table)) == 60
    assert {row.state for row in work.slices()} == {SliceState.APPLIED}
    assert applied.ended == "every event that is registered is applied"


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


def test_the_empty_slices_of_an_older_version_are_carried_on(work: Work) -> None:
    work.cut(0, 0, as_before=True)
    work.cut(1, 0, as_before=True)
    work.cut(0, 0, as_before=True)
    work.cut(1)
    work.cut(0, 0, as_before=True)
    work.worker(ClaimLimits(slices=4, rows=10)).slice_to_lake(work.table.name)
    assert (work.fence(), work.claims()) == (9, [(1, 4), (5, 7), (8, 9)])
    assert {row.state for row in work.slices()} == {SliceState.APPLIED}


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
    version = work.shop.store.lake_positions.version_vector(asked.boundary_id)[work.shop.orders.table_id]
    assert version == work.lake.commits(work.table)[-2].version


def test_a_claim_that_failed_for_now_is_taken_up_with_the_same_bounds(work: Work) -> None:
    work.cut(1)
    work.cut(1)

    def refuse(name: str, moment: Moment) -> None:
        if (name, moment) == ("lake_table.merge", Moment.BEFORE):
            raise LakeError("the lake is away")

    with pytest.raises(LakeError, match="away"):
        work.worker(on_step=refuse).slice_to_lake(work.table.name)
    left = work.shop.store.claims.open_claim(work.shop.orders.table_id)
    assert left is not None
    work.cut(1)
    work.worker(ClaimLimits(slices=1, rows=1)).slice_to_lake(work.table.name)
    assert work.claims() == [(left.first_number, left.last_number), (3, 3)]
    first = work.lake.commits(work.table)[2].user_metadata
    assert first["claim_id"] == str(left.claim_id)


def test_a_commit_whose_answer_was_lost_is_marked_by_the_next_run_and_not_made_again(work: Work) -> None:
    work.cut(1)

    def lose_the_answer(name: str, moment: Moment) -> None:
        if (name, moment) == ("lake_table.merge", Moment.AFTER):
            raise LakeError("the answer is lost")

    with pytest.raises(LakeError, match="lost"):
        work.worker(on_step=lose_the_answer).slice_to_lake(work.table.name)
    assert work.shop.store.claims.open_claim(work.shop.orders.table_id) is not None
    assert work.worker().slice_to_lake(work.table.name).outcomes == ()
    assert (work.fence(), work.claims()) == (1, [(1, 1)])
    assert [row.state for row in work.slices()] == [SliceState.APPLIED]


class ElsewhereLake(MemoryLake):
    """Works in a session that outlives its client."""

    def __init__(self, work: Work, session: str, on_step: OnStep = no_step) -> None:
        super().__init__(store=work.objects, clock=lambda: NOW, on_step=on_step)
        self.session = session
        self.cancelled: list[tuple[str, str]] = []

    def open(self) -> str:
        return self.session

    def cancel(self, session: str, claim_id: str) -> None:
        self.cancelled.append((session, claim_id))


def test_whoever_takes_a_claim_over_cancels_what_its_dead_owner_left_running(work: Work) -> None:
    work.cut(1)

    def die(name: str, moment: Moment) -> None:
        if (name, moment) == ("lake_table.merge", Moment.BEFORE):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace(work.worker(), lake=ElsewhereLake(work, "of the dead", die)).slice_to_lake(work.table.name)
    left = work.shop.store.claims.open_claim(work.shop.orders.table_id)
    assert left is not None
    assert left.session == "of the dead"
    successor = ElsewhereLake(work, "of the successor")
    replace(work.worker(), lake=successor).slice_to_lake(work.table.name)
    assert successor.cancelled == [("of the dead", str(left.claim_id))]
    work.cut(1)
    replace(work.worker(), lake=successor).slice_to_lake(work.table.name)
    assert len(successor.cancelled) == 1


def test_a_lease_that_ends_while_the_claim_is_prepared_forbids_its_commit(work: Work) -> None:
    work.cut(1)

    def forbid() -> None:
        raise StaleEpoch("the lease could not be renewed in time")

    lake = ElsewhereLake(work, "")
    (row,) = (row for row in work.slices() if row.rows)
    content = SliceInput(
        number=row.number, slice_id=row.slice_id, key=row.path or "", rows=1, sha256=row.sha256 or "", schema=SCHEMA
    )
    claim = ClaimWork(claim_id="c", first_number=1, last_number=2, slices=(content,))
    with pytest.raises(StaleEpoch):
        lake.upsert(work.table, claim, may_commit=forbid)
    assert work.fence() == 0
    assert lake.upsert(work.table, claim).inserted == 1


def test_a_table_without_a_published_snapshot_is_left_alone(work: Work) -> None:
    table = TableName(database="shop", schema="public", table="customers")
    other = replace(work.table, name=table, table_uuid=str(work.shop.customers.table_uuid))
    ended = replace(work.worker(), lake_table=lambda _name: other).slice_to_lake(table).ended
    assert ended == "the table has no published snapshot yet"


def test_the_registry_says_up_to_which_position_the_lake_is(work: Work) -> None:
    work.cut(1)
    work.cut(0)
    work.worker().slice_to_lake(work.table.name)
    position = work.shop.store.lake_positions.lake_position(work.shop.orders.table_id)
    assert position.position == encode_position(2)
