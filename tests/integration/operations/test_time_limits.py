"""The time given to `verify` and `repair` runs only while they wait for what it is given for."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import Moment
from cdc_pipeline.wiring import Pipeline
from tests.crash.test_late_slices import without_a_row
from tests.crash.test_rivals import Meanwhile
from tests.crash.world import World, waiting_world
from tests.support.eventually import eventually
from tests.support.pipelines import consume

LIMIT = timedelta(seconds=3)


@pytest.fixture
def world(postgres: PostgresServer, tmp_path: Path) -> Iterator[World]:
    with waiting_world(postgres, tmp_path) as world:
        yield world


def limit_passes() -> None:
    began = time.monotonic()
    assert eventually(lambda: time.monotonic() > began + LIMIT.total_seconds())


@dataclass(slots=True)
class BusyOnce:
    """Another process takes the table's lease, and releases it before somebody asks for it the second time."""

    other: Pipeline
    table: TableName
    lease: Lease | None = None
    asked: int = 0

    def take(self) -> None:
        number = self.other.store.tables.table(self.table).table_id
        self.lease = self.other.store.leases.acquire(number, owner="another", duration=timedelta(minutes=1))

    def is_asked_for(self) -> None:
        self.asked += 1
        if self.lease is not None and self.asked == 2:
            self.other.store.leases.release(self.lease)


def test_a_cut_that_verify_has_registered_itself_counts_however_long_it_read(world: World) -> None:
    with world.process() as pipeline:
        found = pipeline.verification().verify(world.tables, timeout=timedelta())
    assert [each.is_equal for each in found] == [True] * len(world.tables)


def test_the_time_of_verify_begins_behind_the_transactions_that_its_position_waits_for(world: World) -> None:
    """A consumer cuts between the first look and the second, and the lease is free when it is asked for again."""
    (table, *_), looks = world.tables, list[Moment]()
    with world.process() as other:
        busy = BusyOnce(other, table)

        def on_step(name: str, moment: Moment) -> None:
            if moment is not Moment.BEFORE:
                return
            if name == "position.hold":
                limit_passes()
                busy.take()
            if name == "position.read_boundary":
                looks.append(moment)
                if len(looks) == 2:
                    consume(other)
            if name == "lease.acquire":
                busy.is_asked_for()

        with world.process(on_step) as pipeline:
            verification = pipeline.verification()
            cuts = replace(verification.cuts, consume_until_idle=list)
            (found,) = replace(verification, cuts=cuts).verify([table], timeout=LIMIT)
    assert found.is_equal, found
    assert len(looks) == 2


def test_a_repair_whose_late_slice_is_registered_waits_anew_for_the_lake(world: World) -> None:
    things = without_a_row(world)
    with world.process() as other:
        busy, late = BusyOnce(other, things), Meanwhile("slice_file.put", limit_passes)

        def on_step(name: str, moment: Moment) -> None:
            late(name, moment)
            if (name, moment) == ("lease.release", Moment.AFTER) and busy.lease is None:
                busy.take()
            if (name, moment) == ("lease.acquire", Moment.BEFORE) and busy.lease is not None:
                busy.is_asked_for()

        with world.process(on_step) as pipeline:
            repaired = pipeline.repair().run(things, timeout=LIMIT)
            assert late.has_happened
            assert repaired.rows_written == 1
            (verdict,) = pipeline.verification().verify([things])
    assert verdict.is_equal, verdict
