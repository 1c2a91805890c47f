"""Each of the four verbs killed at every step, or without its answer: whoever comes next ends where it would have."""

from dataclasses import replace
from itertools import zip_longest
from threading import Event

import pytest

from cdc_pipeline.metadata_store.states import SnapshotState
from cdc_pipeline.operations.resident_worker import ResidentWorker, RunLines
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import Moment
from cdc_pipeline.wiring import Pipeline
from tests.crash.failpoint import Site
from tests.crash.faults import Fault, Faults, Verb, each_fault, killed, recorded
from tests.crash.invariants import check
from tests.crash.steps import (
    IN_TWO_PASSES,
    OF_REQUESTS,
    RESIDENT_WORKER,
    SET_UP,
    SLICE_TO_LAKE,
    SNAPSHOT_TO_STAGING,
    STAGING_TO_LAKE,
    STREAM_TO_SLICES,
    lethal,
)
from tests.crash.test_rebuild import IN_THE_SOURCE, INFINITE
from tests.crash.world import World, consume_and_apply, go_on, register_changes, take_snapshot
from tests.support.pipelines import consume, set_up_and_consume
from tests.support.streams import run_sql


@each_fault
def test_a_consumer_killed_at_any_step_loses_nothing_and_doubles_nothing(world: World, faults: Faults) -> None:
    world.change(marks=1)
    sites = lethal(recorded(world, consume), STREAM_TO_SLICES)
    go_on(world)
    check(world)
    for fault, site in faults(sites):
        world.change(marks=1)
        fault(world, consume, site)
        world.change()
        go_on(world)
        check(world)


def test_an_event_that_is_kept_aside_is_kept_once_when_its_consumer_dies_before_or_after_the_registration(
    world: World,
) -> None:
    for number, moment in enumerate((Moment.BEFORE, Moment.AFTER), 1):
        run_sql(world.source_url, INFINITE.format(5000 + number))
        run_sql(world.source_url, IN_THE_SOURCE)
        killed(world, consume, Site("registry.register", moment, 1))
        go_on(world)
        assert world.store_query("SELECT count(*) FROM cdc.quarantine WHERE state = 'waiting'") == [(number,)]


@each_fault
def test_a_slice_worker_killed_at_any_step_loses_nothing_and_doubles_nothing(world: World, faults: Faults) -> None:
    """Each time one worker per table dies, at the same step: the three tables differ in how they keep rows."""
    register_changes(world)
    of_tables = [faults(lethal(recorded(world, slices_of(table)), SLICE_TO_LAKE)) for table in world.tables]
    check(world)
    for deaths in zip_longest(*of_tables):
        register_changes(world)
        for table, death in zip(world.tables, deaths, strict=True):
            if death is not None:
                fault, site = death
                fault(world, slices_of(table), site)
                world.expire_leases()
        world.change()
        go_on(world)
        check(world)


def slices_of(table: TableName) -> Verb:
    return lambda pipeline: pipeline.slice_worker().slice_to_lake(table)


@each_fault
def test_a_resident_worker_killed_at_any_step_loses_no_request_and_no_slice(world: World, faults: Faults) -> None:
    register_changes(world)
    sites = lethal(recorded(world, work_off_requests), RESIDENT_WORKER | {"slice_request.ask"})
    check(world)
    for fault, site in faults([site for site in sites if site.name in OF_REQUESTS]):
        register_changes(world)
        fault(world, work_off_requests, site)
        world.bury_the_dead()
        with world.process() as pipeline:
            resident_worker(pipeline).work(Event(), lambda: None, until_idle=True)
        left = "SELECT request_id FROM cdc.slice_request WHERE state NOT IN ('done', 'failed')"
        assert world.store_query(left) == []
        go_on(world)
        check(world)


def work_off_requests(pipeline: Pipeline) -> None:
    """One run after the other, so that every time the same steps follow each other."""
    for table in pipeline.table_names():
        pipeline.store.slice_requests.ask(pipeline.new_id(), table, by_hand=True)
    resident_worker(pipeline).work(Event(), lambda: None, until_idle=True)


def resident_worker(pipeline: Pipeline) -> ResidentWorker:
    return replace(pipeline.resident_worker(RunLines(str)), slots=1)


@each_fault
def test_a_snapshot_killed_at_any_step_up_to_staging_shows_every_row_once(world: World, faults: Faults) -> None:
    """Of a table without a key: a row that is there twice shows. Of one with data partitions, what it takes besides."""
    tables = {table.table: table for table in world.tables}
    sites = snapshot_sites(world, tables["notes"], SNAPSHOT_TO_STAGING - IN_TWO_PASSES, up_to="lake_table.create")
    for fault, site in faults(sites):
        survive_snapshot(world, tables["notes"], fault, site)
    sites = snapshot_sites(world, tables["parts"], SNAPSHOT_TO_STAGING, up_to="lake_table.create")
    for fault, site in faults([site for site in sites if site.name in IN_TWO_PASSES]):
        survive_snapshot(world, tables["parts"], fault, site)


@each_fault
@pytest.mark.parametrize("name", [pytest.param("parts", marks=pytest.mark.nightly), "notes"])
def test_a_snapshot_killed_at_any_step_from_staging_to_the_lake_shows_every_row_once(
    world: World, faults: Faults, name: str
) -> None:
    table = next(table for table in world.tables if table.table == name)
    sites = snapshot_sites(world, table, STAGING_TO_LAKE, since="lake_table.create")
    for fault, site in faults(sites):
        survive_snapshot(world, table, fault, site)


def snapshot_sites(
    world: World, table: TableName, expected: frozenset[str], *, since: str = "", up_to: str = ""
) -> list[Site]:
    world.change()
    sites = recorded(world, lambda pipeline: take_snapshot(pipeline, [table]))
    names = [site.name for site in sites]
    first = names.index(since) if since else 0
    return lethal(sites[first : names.index(up_to) if up_to else None], expected)


def survive_snapshot(world: World, table: TableName, fault: Fault, site: Site) -> None:
    """The stream flows on before, between and after; nobody has read the last changes when the snapshot is taken."""
    world.change()
    fault(world, lambda pipeline: take_snapshot(pipeline, [table]), site)
    register_changes(world)
    world.bury_the_dead()
    with world.process() as pipeline:
        (snapshot,) = take_snapshot(pipeline, [table])
        consume_and_apply(pipeline)
    assert snapshot.state is SnapshotState.PUBLISHED, snapshot.error
    check(world)


@each_fault
def test_a_set_up_killed_at_any_step_is_completed_by_the_next_one(new: World, faults: Faults) -> None:
    sites = lethal(recorded(new, set_up), SET_UP)
    for fault, site in faults(sites):
        new.forget_everything()
        fault(new, set_up, site)
        with new.process() as pipeline:
            set_up_and_consume(pipeline)
            new.change()
            take_snapshot(pipeline, new.tables)
            consume_and_apply(pipeline)
        check(new)


def set_up(pipeline: Pipeline) -> None:
    pipeline.source_setup().set_up()
