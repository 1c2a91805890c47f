"""A claim that its worker did not end: the next one takes it up with the same bounds, and makes nothing twice."""

from dataclasses import replace

import pytest

from cdc_pipeline.apply.claim_work import ClaimLimits
from cdc_pipeline.apply.slice_to_lake import SliceWorker
from cdc_pipeline.errors import CdcError, LakeError, StaleEpoch
from cdc_pipeline.lake.protocol import ClaimWork, SliceInput
from cdc_pipeline.metadata_store.states import SliceState
from cdc_pipeline.steps import Moment, OnStep, no_step
from tests.support.lake import NOW
from tests.support.memory_lake import MemoryLake
from tests.support.metadata_store import SCHEMA
from tests.support.slice_work import Work


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
    """Works in sessions that outlive their client."""

    def __init__(self, work: Work, session: str, on_step: OnStep = no_step) -> None:
        super().__init__(store=work.objects, clock=lambda: NOW, on_step=on_step)
        self.session = session
        self.cancelled: list[tuple[str, str]] = []

    def open(self) -> str:
        return self.session

    def close(self) -> None:
        self.session = f"behind {self.session}"

    def cancel(self, session: str, claim_id: str) -> None:
        self.cancelled.append((session, claim_id))


def worker_with(work: Work, lake: ElsewhereLake) -> SliceWorker:
    worker = work.worker()
    return replace(worker, work=replace(worker.work, lake=lake))


def test_whoever_takes_a_claim_over_cancels_what_its_dead_owner_left_running(work: Work) -> None:
    work.cut(1)

    def die(name: str, moment: Moment) -> None:
        if (name, moment) == ("lake_table.merge", Moment.BEFORE):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker_with(work, ElsewhereLake(work, "of the dead", die)).slice_to_lake(work.table.name)
    left = work.shop.store.claims.open_claim(work.shop.orders.table_id)
    assert left is not None
    assert left.session == "of the dead"
    successor = ElsewhereLake(work, "of the successor")
    worker_with(work, successor).slice_to_lake(work.table.name)
    assert successor.cancelled == [("of the dead", str(left.claim_id))]
    work.cut(1)
    worker_with(work, successor).slice_to_lake(work.table.name)
    assert len(successor.cancelled) == 1


@pytest.mark.parametrize("place", ["slice_file.get", "lake_table.merge"])
@pytest.mark.parametrize("error", [StaleEpoch, LakeError])
def test_a_worker_that_gives_a_claim_up_does_not_go_on_in_the_session_that_its_successor_ends(
    work: Work, place: str, error: type[CdcError]
) -> None:
    work.cut(1)

    def give_up(name: str, moment: Moment) -> None:
        if (name, moment) == (place, Moment.BEFORE):
            raise error("somebody marked the run")

    lake = ElsewhereLake(work, "the first", give_up)
    worker = work.worker(on_step=give_up)
    with pytest.raises(error, match="marked"):
        replace(worker, work=replace(worker.work, lake=lake)).slice_to_lake(work.table.name)
    left = work.shop.store.claims.open_claim(work.shop.orders.table_id)
    assert left is not None
    assert (left.session, lake.open()) == ("the first", "behind the first")


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
    assert lake.upsert(work.table, claim).counts.inserted == 1
