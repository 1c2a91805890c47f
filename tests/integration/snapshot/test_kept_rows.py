"""Rows of a snapshot that do not fit are quarantined once, however often their export is tried."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_pipeline.errors import StoreAway
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.steps import Moment
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.crash.world import World, new_world, take_snapshot
from tests.support.pipelines import set_up_and_consume
from tests.support.streams import run_sql

KEPT = "SELECT state, payload ->> 'id', payload ->> 'price' FROM cdc.quarantine ORDER BY quarantine_id"
ATTEMPTS = "SELECT max(attempt) FROM cdc.snapshot_task WHERE kind = 'export'"


@pytest.fixture
def world(postgres: PostgresServer, tmp_path: Path) -> Iterator[World]:
    """One row that does not fit, among many that do."""
    with new_world(postgres, tmp_path) as world:
        run_sql(world.source_url, "INSERT INTO things (id, price) VALUES (77, 'NaN')")
        with world.process() as pipeline:
            set_up_and_consume(pipeline)
        yield world


class OnceAway:
    """The metadata store goes away once, right after it kept the rows."""

    def __init__(self) -> None:
        self._was_away = False

    def __call__(self, name: str, moment: Moment) -> None:
        if (name, moment) == ("quarantine.keep", Moment.AFTER) and not self._was_away:
            self._was_away = True
            raise StoreAway("the metadata store did not answer")


def test_an_export_that_is_tried_again_keeps_its_rows_once(world: World) -> None:
    with world.process(OnceAway()) as pipeline:
        (snapshot,) = take_snapshot(pipeline, world.tables[:1])
    assert (snapshot.state, snapshot.rows) == ("published", 60)
    assert world.store_query(ATTEMPTS) == [(2,)]
    assert world.store_query(KEPT) == [("waiting", "77", "NaN")]


def test_a_snapshot_that_starts_over_takes_the_rows_of_the_first_with_it(world: World) -> None:
    things = world.tables[:1]
    with pytest.raises(Crash), world.process(Failpoint(Site("quarantine.keep", Moment.AFTER, 1))) as pipeline:
        take_snapshot(pipeline, things)
    world.bury_the_dead()
    with world.process() as pipeline:
        take_snapshot(pipeline, things)
    assert world.store_query(KEPT) == [("dropped", "77", "NaN"), ("waiting", "77", "NaN")]


@pytest.mark.parametrize("died", [Site("kept_rows.put", Moment.AFTER, 1), Site("snapshot.publish", Moment.BEFORE, 1)])
def test_a_row_that_is_corrected_before_the_publication_is_recorded_does_not_hold_it_up(
    world: World, died: Site
) -> None:
    things = world.tables[:1]
    with pytest.raises(Crash), world.process(Failpoint(died)) as pipeline:
        take_snapshot(pipeline, things)
    world.bury_the_dead()
    run_sql(world.store_url, "UPDATE cdc.quarantine SET payload = replace(payload::text, 'NaN', '2.50')::json")
    with world.process() as pipeline:
        (snapshot,) = take_snapshot(pipeline, things)
    assert (snapshot.state, snapshot.rows) == ("published", 60)
    assert world.store_query(KEPT) == [("waiting", "77", "2.50")]
