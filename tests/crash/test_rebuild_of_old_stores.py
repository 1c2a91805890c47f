"""A metadata store that was restored from its backup behind a cleaning: a rebuild makes it what it would be."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from cdc_pipeline.metadata_store.states import QuarantineState
from tests.crash.invariants import lake_rows, source_rows
from tests.crash.test_rebuild import apply, keep_aside, rebuilt, replay_all
from tests.crash.test_retention import WEEK, YEAR, apply_changes, cleaned
from tests.crash.world import World, go_on, lake_tables
from tests.support.ledgers import copy_store
from tests.support.pipelines import consume
from tests.support.streams import database_of, run_sql


@contextmanager
def restored_afterwards(world: World) -> Iterator[None]:
    """Behind the block, the metadata store is what it was before."""
    store, saved = database_of(world.store_url), f"{database_of(world.store_url)}_saved"
    world.leave_store()
    copy_store(world.source_url, store, saved)
    try:
        yield
        world.leave_store()
        copy_store(world.source_url, saved, store)
    finally:
        run_sql(world.source_url, f'DROP DATABASE "{saved}"')


def replay_and_delete(world: World) -> None:
    """The event of the row 5000 is applied, and the row is deleted after that, without a trace."""
    replay_all(world)
    apply(world)
    run_sql(world.source_url, "DELETE FROM things WHERE id = 5000")
    with world.process() as pipeline:
        consume(pipeline)
    apply(world)
    with world.process() as pipeline:
        pipeline.maintenance().maintain(world.tables[0])


@pytest.mark.parametrize("later", [WEEK, YEAR], ids=["decisions are kept", "decisions are forgotten"])
def test_an_event_that_the_backup_has_waiting_is_not_applied_again(world: World, later: timedelta) -> None:
    """The cut file that decided its late slice is deleted, and its delete is behind it."""
    keep_aside(world, number=5000)
    with restored_afterwards(world):
        replay_and_delete(world)
        for _ in range(2):
            for _ in range(2):
                apply_changes(world)
            cleaned(world, later)
    rebuilt(world)
    with world.process() as pipeline:
        assert pipeline.store.quarantine.entries(state=QuarantineState.WAITING) == ()
    replay_all(world)
    go_on(world)
    with world.process() as pipeline:
        for table in lake_tables(pipeline):
            assert lake_rows(pipeline, table) == source_rows(world, table)
