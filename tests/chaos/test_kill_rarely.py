"""kill -9 at the steps that are taken rarely: a table that changed, what a dead worker left, and maintenance."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from cdc_pipeline.record import TableName
from cdc_pipeline.settings.work import MaintenanceSettings, WorkerSettings
from cdc_pipeline.steps import Moment
from tests.chaos.report import Report
from tests.chaos.victim import maintain
from tests.chaos.world import LEASE, ChaosWorld
from tests.crash.failpoint import Site
from tests.crash.invariants import check
from tests.crash.world import MARK
from tests.support.eventually import eventually
from tests.support.streams import run_sql

pytestmark = pytest.mark.chaos

VERB, OPTIMIZE = "slice_to_lake", "lake_table.optimize"
FEW = WorkerSettings(lease=LEASE, claim_slices=2)
"""A boundary of two stream partitions is a claim's worth."""
LATE, SOON = MaintenanceSettings(small_files=1_000), MaintenanceSettings(small_files=2)
"""Two claims leave files to merge, which their own runs do not merge."""


def a_new_column(world: ChaosWorld, table: TableName) -> None:
    run_sql(world.source_url, f"ALTER TABLE {table.table} ADD COLUMN extra_{world.rounds} int")


def a_new_column_with_a_blank(world: ChaosWorld, table: TableName) -> None:
    """Once for each table its lake begins to map the names of columns."""
    run_sql(world.source_url, f'ALTER TABLE {table.table} ADD COLUMN "extra {world.rounds}" int')


def a_new_column_and_no_row(world: ChaosWorld, table: TableName) -> None:
    """Nobody writes to the table since its columns changed."""
    a_new_column(world, table)
    world.register()
    run_sql(world.source_url, MARK)


def an_open_claim(world: ChaosWorld, table: TableName) -> None:
    """Whose worker died before its MERGE."""
    die(world, table, "lake_table.merge")


def a_claim_in_the_lake(world: ChaosWorld, table: TableName) -> None:
    """Whose worker died before it said so."""
    die(world, table, "claim.mark_applied")


def die(world: ChaosWorld, table: TableName, name: str) -> None:
    world.turn_of(table)
    world.register()
    world.kill(VERB, table, Site(name, Moment.BEFORE, 1))
    assert eventually(lambda: not world.held_leases())


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
@pytest.mark.parametrize(
    ("before", "name"),
    [
        (a_new_column, "lake_schema.commit"),
        (a_new_column_with_a_blank, "lake_files.write"),
        (a_new_column_and_no_row, "fence.move"),
        (an_open_claim, "claim.resume"),
        (a_claim_in_the_lake, "claim.mark_applied_through"),
    ],
)
def test_a_worker_killed_where_it_rarely_is_loses_and_doubles_nothing(
    world: ChaosWorld, report: Report, before: Callable[[ChaosWorld, TableName], None], name: str, moment: Moment
) -> None:
    with (
        changed_settings(world, worker=FEW) as few,
        report.red_unless_done(f"{VERB}: {name}", f"kill -9 {moment}"),
    ):
        table = few.next_table()
        before(few, table)
        if before is not a_new_column_and_no_row:
            few.turn_of(table)
        few.register()
        few.kill(VERB, table, Site(name, moment, 1))
        began = time.monotonic()
        few.recover(table)
        recovery = timedelta(seconds=time.monotonic() - began)
        check(few)
        report.record(f"{VERB}: {name}", f"kill -9 {moment}", "equal, once", recovery)


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_maintenance_killed_at_its_commit_changes_no_row_and_stops_no_claim(
    world: ChaosWorld, report: Report, moment: Moment
) -> None:
    """The next claim goes on, and so does the next maintenance."""
    fault = f"kill -9 {moment}"
    table = world.next_table()
    with changed_settings(world, maintenance=LATE) as late:
        for _ in range(2):
            late.turn_of(table)
            late.recover(table)
    with (
        changed_settings(world, maintenance=SOON) as soon,
        report.red_unless_done(f"maintain: {OPTIMIZE}", fault),
    ):
        soon.kill("maintain", table, Site(OPTIMIZE, moment, 1))
        began = time.monotonic()
        assert eventually(lambda: not soon.held_leases())
        check(soon)
        soon.turn_of(table)
        soon.recover(table)
        recovery = timedelta(seconds=time.monotonic() - began)
        with soon.process() as pipeline:
            maintain(pipeline, table)
        check(soon)
        report.record(f"maintain: {OPTIMIZE}", fault, "equal, once", recovery)


@contextmanager
def changed_settings(world: ChaosWorld, **changed: WorkerSettings | MaintenanceSettings) -> Iterator[ChaosWorld]:
    usual = world.settings
    world.settings = usual.model_copy(update=changed)
    try:
        yield world
    finally:
        world.settings = usual
