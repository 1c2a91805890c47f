"""Runs over several tables without Airflow: what a backfill finishes, waits for, and reports."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cdc_pipeline.errors import LeaseBusy, SliceDamaged, StaleEpoch
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.steps import Moment
from tests.crash.failpoint import Crash
from tests.crash.world import World, waiting_world
from tests.support.metadata_store import count_waiting

LONG_AGO = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture
def world(postgres: PostgresServer, tmp_path: Path) -> Iterator[World]:
    with waiting_world(postgres, tmp_path) as world:
        yield world


def crash_at_the_merge(name: str, moment: Moment) -> None:
    if (name, moment) == ("lake_table.merge", Moment.BEFORE):
        raise Crash


def test_a_bounded_backfill_finishes_the_claim_of_a_dead_worker_whole(world: World) -> None:
    with pytest.raises(Crash), world.process(crash_at_the_merge) as pipeline:
        pipeline.slice_runs().run(world.tables[0])
    world.bury_the_dead()
    with world.process() as pipeline:
        reports = pipeline.slice_runs().backfill(world.tables, until=LONG_AGO)
    assert [report["claims"] for report in reports] == [1, 0, 0]


def test_a_busy_table_keeps_a_backfill_waiting_after_all_others_are_done(world: World) -> None:
    busy, free, _ = world.tables
    with world.process() as pipeline:
        busy_id, free_id = (pipeline.store.tables.table(name).table_id for name in (busy, free))
        lease = pipeline.store.leases.acquire(busy_id, owner="another", duration=timedelta(minutes=1))
        with pytest.raises(LeaseBusy):
            pipeline.slice_runs().backfill(world.tables, wait=timedelta(0))
        assert count_waiting(pipeline.store, free_id) == 0
        assert count_waiting(pipeline.store, busy_id) > 0
        impatient = replace(pipeline.maintenance(), timeout=timedelta(0))
        assert "is held by another" in impatient.maintain(busy)["ended"]
        pipeline.store.leases.release(lease)
        assert [report["claims"] for report in pipeline.slice_runs().backfill(world.tables)] == [1, 0, 0]
        assert count_waiting(pipeline.store, busy_id) == 0


def test_a_backfill_waits_for_a_table_that_another_worker_has_for_a_moment(world: World) -> None:
    """So that slice runs of many tables, each of which is busy now and then, let it end."""
    busy, *_ = world.tables
    with world.process() as pipeline:
        busy_id = pipeline.store.tables.table(busy).table_id
        pipeline.store.leases.acquire(busy_id, owner="another", duration=timedelta(seconds=2))
        assert [report["claims"] for report in pipeline.slice_runs().backfill(world.tables)] == [1, 1, 1]


def test_a_backfill_tries_a_table_again_whose_lease_was_lost_before_a_commit(world: World) -> None:
    """As during a MERGE while which the metadata store is away for longer than the lease lasts."""
    commits = list[Moment]()

    def loses_the_first_lease(name: str, moment: Moment) -> None:
        if (name, moment) == ("lake_table.merge", Moment.BEFORE):
            commits.append(moment)
            if len(commits) == 1:
                message = "the lease could not be renewed in time"
                raise StaleEpoch(message)

    with world.process(loses_the_first_lease) as pipeline:
        assert [report["claims"] for report in pipeline.slice_runs().backfill(world.tables)] == [1, 1, 1]
    assert len(commits) == len(world.tables) + 1


def test_maintenance_whose_lease_was_lost_is_left_for_the_next_run(world: World) -> None:
    with world.process() as pipeline:
        maintenance = pipeline.maintenance()
        lost = replace(maintenance, work=replace(maintenance.work, lease_length=timedelta(microseconds=1)))
        ended = lost.maintain(world.tables[0])["ended"]
    assert ended.startswith("left for the next run: the lease of table")
    assert ended.endswith("could not be renewed in time")


def test_a_backfill_names_every_table_that_was_stopped_also_beside_one_that_is_only_busy(world: World) -> None:
    first, second, busy = world.tables
    with world.process() as pipeline:
        ids = [pipeline.store.tables.table(name).table_id for name in world.tables]
        files = world.store_query(f"SELECT path FROM cdc.slice WHERE path IS NOT NULL AND table_id <> {ids[2]}")
        for (path,) in files:
            (world.settings.folder / world.settings.lake / path).write_bytes(b"damaged")
        lease = pipeline.store.leases.acquire(ids[2], owner="another", duration=timedelta(minutes=1))
        with pytest.raises(LeaseBusy) as waits:
            pipeline.slice_runs().backfill(world.tables, wait=timedelta(0))
        pipeline.store.leases.release(lease)
        with pytest.raises(SliceDamaged) as stopped:
            pipeline.slice_runs().backfill(world.tables)
    errors = str(stopped.value).split(f"; {second}: ")
    assert [error.removeprefix(f"{first}: ").startswith("the slice file") for error in errors] == [True, True]
    assert str(waits.value).startswith(f"{stopped.value}; {busy}: the lease of table")


def test_a_backfill_leaves_tables_alone_that_need_nobody(world: World) -> None:
    wanted, unknown, other = world.tables
    with world.process() as pipeline:
        store = pipeline.store
        store.stale_tables.mark(store.tables.table(wanted).table_id, "its columns changed", snapshot_wanted=True)
        new = replace(unknown, table="new")
        reports = pipeline.slice_runs().backfill([wanted, new, other])
    assert [report["ended"] for report in reports[:2]] == [
        "a new snapshot of it follows: its columns changed",
        "the table is not registered yet: run cdc setup-source",
    ]
    assert [report.get("claims") for report in reports] == [None, None, 1]
