"""Snapshots that begin without a command: beside `cdc apply`, whose other tables go on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_pipeline.errors import CdcError, SourceAway, SourceError, StoreAway
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.metadata_store.states import SnapshotState
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import Moment
from snapshot.wiring import snapshot_runs
from tests.crash.world import World, new_world
from tests.support.pipelines import set_up_and_consume
from tests.support.snapshot_tasks import REMEMBER_A_FAILURE
from tests.support.streams import run_sql


@pytest.fixture
def world(postgres: PostgresServer, tmp_path: Path) -> Iterator[World]:
    with new_world(postgres, tmp_path) as world, world.process() as pipeline:
        set_up_and_consume(pipeline)
        run_sql(world.store_url, "UPDATE cdc.source_table SET snapshot_wanted = table_name = 'things'")
        yield world


def test_one_that_failed_a_moment_ago_is_left_until_its_pause_is_over(world: World) -> None:
    run_sql(world.store_url, REMEMBER_A_FAILURE)
    with world.process() as pipeline:
        runs = snapshot_runs(pipeline)
        assert runs.take_wanted(world.tables, slots=1) == ()
        assert runs.wanted(world.tables) == world.tables[:1]
        run_sql(world.store_url, "UPDATE cdc.snapshot SET finished_at = finished_at - interval '61 seconds'")
        (taken,) = runs.take_wanted(world.tables, slots=1)
        assert taken.state is SnapshotState.PUBLISHED


def test_a_run_of_airflow_leaves_it_out_too_unless_it_is_the_only_one_of_a_cleared_run(world: World) -> None:
    def begun(**how: bool) -> list[str]:
        return [table for order in snapshot_runs(pipeline).begin(None, 1, **how) for table in order["chosen"]]

    run_sql(world.store_url, REMEMBER_A_FAILURE)
    with world.process() as pipeline:
        assert begun(keeps_pauses=True) == []
        assert begun() == [str(world.tables[0])]
        run_sql(world.store_url, "UPDATE cdc.source_table SET snapshot_wanted = true")
        assert begun() == [str(name) for name in world.tables[1:]]


def test_a_run_is_told_of_the_tables_alone_that_it_was_asked_for(world: World) -> None:
    asked, beside, _ = world.tables
    with world.process() as pipeline:
        store, runs = pipeline.store, snapshot_runs(pipeline)
        store.stale_tables.mark(store.tables.table(beside).table_id, "its columns changed")
        (order,) = runs.begin([str(asked)], 1)
        assert (order["chosen"], order["refused"]) == ([str(asked)], [])
        why = {name: SourceError(f"{name} is refused", remedy="grant it") for name in (beside, asked)}
        with pytest.raises(SourceError, match=f"^{asked} is refused"):
            replace(runs, set_up=lambda _: why).begin([str(asked)], 1)


def test_a_source_that_is_away_keeps_nobody_from_applying_slices(world: World) -> None:
    def away(_: Sequence[TableName]) -> Mapping[TableName, CdcError]:
        raise SourceAway("the source did not answer", remedy="start it")

    with world.process() as pipeline:
        assert replace(snapshot_runs(pipeline), set_up=away).take_wanted(world.tables, slots=1) == ()


def test_a_metadata_store_that_is_away_ends_nobody_who_applies_slices(world: World) -> None:
    def away(name: str, moment: Moment) -> None:
        if (name, moment) == ("table.list", Moment.BEFORE):
            raise StoreAway("nobody listens")

    with world.process(away) as pipeline:
        assert snapshot_runs(pipeline).take_wanted(world.tables, slots=1) == ()
