"""Whatever consumers and workers do, crash or come too late: numbers stay gapless, every slice is applied once."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count, pairwise
from uuid import UUID, uuid5

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from cdc_pipeline.errors import LeaseBusy, SliceFork, StaleEpoch
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.metadata_store.ledger.cut import Cut, PartitionRange, Slice
from cdc_pipeline.metadata_store.ledger.records import Assignment, Claim
from cdc_pipeline.metadata_store.states import SliceState
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.record import encode_position
from cdc_pipeline.time_slice import label_of
from tests.support.metadata_store import (
    MINUTE,
    MORNING,
    NAMESPACE,
    PARTITIONS,
    SCHEMA,
    STREAM,
    mark_applied,
    new_table,
    opened_store,
)

OVER = timedelta(seconds=-1)
HOUR = timedelta(hours=1)
EVERYTHING = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the model keeps of a slice; its number is its place in the list, from one."""

    stream_partition: int
    start: int
    end: int
    rows: int
    requested: bool


class StoreMachine(RuleBasedStateMachine):
    """One stream, one table, any number of consumers and workers. The lake is a list of slice numbers."""

    def __init__(self, store: MetadataStore, run: int) -> None:
        super().__init__()
        self.store = store
        self.stream = f"stream_{run}"
        store.streams.register_stream(replace(STREAM, name=self.stream), stream_partitions=len(PARTITIONS))
        self.assignment = self.take_stream()
        table = store.tables.register_table(
            replace(new_table(f"table_{run}"), stream=self.stream, table_uuid=self.uuid(0))
        )
        self.table_id = table.table_id
        self.schema_id = store.tables.record_schema(self.table_id, SCHEMA, first_offset=encode_position(0))
        self.slices: list[Known] = []
        self.requested: list[int] = []
        self.offset = 0
        self.last_cut: Cut | None = None
        self.lake: list[int] = []
        self.marked = 0
        self.lease: Lease | None = None
        self.held = False
        self.old_leases: list[Lease] = []
        self.claim: Claim | None = None
        self.claims = 0
        self.watermark: datetime | None = None

    def uuid(self, number: int) -> UUID:
        return uuid5(NAMESPACE, f"{self.stream} {number}")

    def take_stream(self) -> Assignment:
        return self.store.streams.take_stream(self.stream, owner="consumer", first_offset=encode_position(0))

    @rule()
    def a_consumer_takes_the_stream(self) -> None:
        assignment = self.take_stream()
        assert assignment.epoch == self.assignment.epoch + 1
        assert set(assignment.next_offset.values()) == {encode_position(self.offset)}
        self.assignment = assignment

    def cut(self, length: int, rows: tuple[int, int], *, requested: bool, backwards: int) -> Cut:
        end = self.offset + length
        ranges = PartitionRange(
            stream_partition=0, start_offset=encode_position(self.offset), end_offset=encode_position(end)
        )
        return Cut(
            stream=self.stream,
            start=encode_position(self.offset),
            position=encode_position(end),
            commit_time=MORNING + (end - backwards) * MINUTE,
            label=label_of(MORNING + end * MINUTE, MINUTE),
            partitions=tuple(replace(ranges, stream_partition=partition) for partition in PARTITIONS),
            tables=(self.table_id,),
            slices=tuple(
                self.new_slice(partition, rows[partition], end) for partition in PARTITIONS if rows[partition]
            ),
            requested=requested,
        )

    def new_slice(self, partition: int, rows: int, end: int) -> Slice:
        sha256 = self.uuid(end * len(PARTITIONS) + partition).hex * 2
        return Slice(
            table_id=self.table_id,
            stream_partition=partition,
            path=sha256,
            sha256=sha256,
            rows=rows,
            schema_id=self.schema_id,
        )

    @rule(
        length=st.integers(1, 5),
        rows=st.tuples(st.integers(0, 3), st.integers(0, 3)),
        requested=st.booleans(),
        backwards=st.integers(0, 4),
        answer_lost=st.booleans(),
    )
    def a_consumer_registers(
        self, length: int, rows: tuple[int, int], *, requested: bool, backwards: int, answer_lost: bool
    ) -> None:
        cut = self.cut(length, rows, requested=requested, backwards=backwards)
        boundary = self.store.registration.register(cut, self.assignment)
        if answer_lost:
            assert self.store.registration.register(cut, self.assignment) == boundary
        self.slices += [
            Known(
                stream_partition=part, start=self.offset, end=self.offset + length, rows=rows[part], requested=requested
            )
            for part in PARTITIONS
            if rows[part]
        ]
        self.offset += length
        self.requested += [self.offset] if requested else []
        self.last_cut = cut

    @precondition(lambda self: self.assignment.epoch > 1)
    @rule(length=st.integers(1, 5))
    def a_consumer_that_lost_the_stream_comes_too_late(self, length: int) -> None:
        cut = self.cut(length, (1, 1), requested=False, backwards=0)
        with pytest.raises(StaleEpoch):
            self.store.registration.register(cut, replace(self.assignment, epoch=self.assignment.epoch - 1))

    @precondition(lambda self: self.last_cut is not None and any(new.rows for new in self.last_cut.slices))
    @rule()
    def a_consumer_registers_other_content(self) -> None:
        assert self.last_cut is not None
        other = tuple(replace(new, sha256="f" * 64) if new.rows else new for new in self.last_cut.slices)
        with pytest.raises(SliceFork):
            self.store.registration.register(replace(self.last_cut, slices=other), self.assignment)

    @rule(dies=st.booleans())
    def a_worker_comes(self, *, dies: bool) -> None:
        if self.held:
            with pytest.raises(LeaseBusy):
                self.store.leases.acquire(self.table_id, owner="second", duration=HOUR)
            return
        if self.lease is not None:
            self.old_leases.append(self.lease)
        self.lease = self.store.leases.acquire(self.table_id, owner="worker", duration=OVER if dies else HOUR)
        assert self.lease.epoch == len(self.old_leases) + 1
        self.held = not dies

    @precondition(lambda self: self.held)
    @rule(gracefully=st.booleans())
    def the_worker_leaves(self, *, gracefully: bool) -> None:
        assert self.lease is not None
        if gracefully:
            self.store.leases.release(self.lease)
        else:
            self.store.leases.renew(self.lease, duration=OVER)
        self.held = False

    @precondition(lambda self: self.lease is not None and self.claim is None and len(self.lake) < len(self.slices))
    @rule(most_slices=st.integers(1, 7), most_rows=st.integers(1, 9))
    def the_worker_claims(self, most_slices: int, most_rows: int) -> None:
        assert self.lease is not None
        fence = len(self.lake)
        rows = self.store.slices.next_slices(
            self.table_id, after_number=fence, most_slices=most_slices, most_rows=most_rows
        )
        self.check_whole_boundaries([row.number for row in rows], most_slices, most_rows)
        self.claims += 1
        self.claim = self.store.claims.record_claim(self.lease, rows, claim_id=self.uuid(-self.claims))

    def check_whole_boundaries(self, numbers: list[int], most_slices: int, most_rows: int) -> None:
        fence = len(self.lake)
        known = [self.slices[number - 1] for number in numbers]
        assert numbers == list(range(fence + 1, fence + len(numbers) + 1))
        assert all(row.end != known[-1].end for row in self.slices[numbers[-1] :])
        assert not any(known[0].end <= asked < known[-1].end for asked in self.requested)
        if known[0].end != known[-1].end:
            assert len(numbers) <= most_slices
            assert sum(slice_.rows for slice_ in known) <= most_rows

    @precondition(lambda self: self.claim is not None and self.claim.first_number == len(self.lake) + 1)
    @rule()
    def the_lake_commits_the_claim(self) -> None:
        assert self.claim is not None
        self.lake += range(self.claim.first_number, self.claim.last_number + 1)

    @precondition(lambda self: self.claim is not None and self.claim.last_number == len(self.lake))
    @rule(answer_lost=st.booleans())
    def the_worker_marks_what_the_lake_holds(self, *, answer_lost: bool) -> None:
        assert self.claim is not None
        assert self.lease is not None
        for _ in range(1 + answer_lost):
            mark_applied(self.store, self.lease, self.claim, lake_version=len(self.lake))
        self.marked, self.claim = len(self.lake), None

    @precondition(lambda self: self.lease is not None)
    @rule()
    def a_worker_recovers(self) -> None:
        """What a worker does first: believe the lake, then resume what is left open."""
        assert self.lease is not None
        self.store.claims.mark_applied_through(self.lease, len(self.lake), lake_version=len(self.lake))
        self.marked = len(self.lake)
        found = self.store.claims.open_claim(self.table_id)
        if found is None:
            assert self.claim is None or self.claim.last_number <= len(self.lake)
            self.claim = None
            return
        assert self.claim is not None
        assert (found.claim_id, found.last_number) == (self.claim.claim_id, self.claim.last_number)
        self.claim = self.store.claims.resume_claim(self.lease, found)
        assert self.claim.attempt == found.attempt + 1

    @precondition(lambda self: self.claim is not None and self.claim.last_number > len(self.lake))
    @rule()
    def the_worker_gives_the_claim_up(self) -> None:
        assert self.claim is not None
        assert self.lease is not None
        self.store.claims.mark_failed(self.lease, self.claim, "on purpose")
        self.claim = None

    @precondition(lambda self: bool(self.old_leases) and self.claim is not None)
    @rule(data=st.data())
    def a_worker_that_lost_its_lease_wakes_up(self, data: st.DataObject) -> None:
        assert self.claim is not None
        old = data.draw(st.sampled_from(self.old_leases))
        with pytest.raises(StaleEpoch):
            mark_applied(self.store, old, self.claim, lake_version=1)
        with pytest.raises(StaleEpoch):
            self.store.claims.mark_failed(old, self.claim, "late")
        with pytest.raises(StaleEpoch):
            self.store.leases.renew(old, duration=HOUR)
        self.store.leases.release(old)

    @invariant()
    def numbers_are_gapless_and_ranges_disjoint(self) -> None:
        rows = self.store.slices.slices(self.table_id, 1, EVERYTHING)
        assert [row.number for row in rows] == list(range(1, len(self.slices) + 1))
        for row, known in zip(rows, self.slices, strict=True):
            assert (row.start_offset, row.end_offset) == (encode_position(known.start), encode_position(known.end))
            found = (row.stream_partition, row.rows, row.requested)
            assert found == (known.stream_partition, known.rows, known.requested)
        for partition in PARTITIONS:
            ranges = [row for row in rows if row.stream_partition == partition]
            assert all(before.end_offset <= after.start_offset for before, after in pairwise(ranges))

    @invariant()
    def each_slice_is_applied_once_and_in_order(self) -> None:
        rows = self.store.slices.slices(self.table_id, 1, EVERYTHING)
        applied = [row.number for row in rows if row.state is SliceState.APPLIED]
        assert applied == list(range(1, self.marked + 1))
        assert self.lake == list(range(1, len(self.lake) + 1))
        assert self.marked <= len(self.lake)

    @invariant()
    def the_watermark_never_steps_back(self) -> None:
        boundary = self.store.lake_positions.last_boundary(self.stream)
        if boundary is not None:
            assert boundary.position == encode_position(self.offset)
            assert self.watermark is None or boundary.commit_time >= self.watermark
            self.watermark = boundary.commit_time


def test_any_history_of_consumers_and_workers_keeps_the_metadata_store_whole(store_url: str) -> None:
    runs = count()
    with opened_store(store_url) as (_, store):

        class OwnStream(StoreMachine):
            def __init__(self) -> None:
                super().__init__(store, next(runs))

        run_state_machine_as_test(
            OwnStream,
            settings=settings(
                max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )
