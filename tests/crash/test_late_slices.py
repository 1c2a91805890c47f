"""Two at once that decide late slices: repairs, and replays of quarantined events."""

from contextlib import suppress

import pytest

from cdc_pipeline.errors import RegistryError, StaleEpoch
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.record import TableName
from tests.crash.invariants import lake_rows, source_rows
from tests.crash.test_rivals import Meanwhile
from tests.crash.world import World, apply_all, go_on, register_changes
from tests.support.pipelines import consume
from tests.support.streams import run_sql


def test_a_repair_that_was_taken_over_decides_nothing_any_more(world: World) -> None:
    """Its rows may be older than a delete that left no tombstone, since the other repair has ended."""
    things = world.tables[0]
    register_changes(world)
    with world.process() as pipeline:
        apply_all(pipeline)
    lose_a_row(world, things)

    def rival() -> None:
        world.expire_leases()
        with world.process() as other:
            assert other.repair().run(things).rows_written == 1
        run_sql(world.source_url, f"DELETE FROM {things.table}")
        with world.process() as other:
            consume(other)
            apply_all(other)

    with world.process(Meanwhile("slice_file.put", rival)) as pipeline, pytest.raises(StaleEpoch):
        pipeline.repair().run(things)
    go_on(world)
    with world.process() as pipeline:
        table = pipeline.lake_table(things)
        assert lake_rows(pipeline, table) == source_rows(world, table)


def lose_a_row(world: World, table: TableName) -> None:
    """An event that does not fit is dropped, and the source is corrected without an event of that row."""
    run_sql(world.source_url, f"INSERT INTO {table.table} VALUES (9000, 'never', repeat('x', 3000), 1.5, 'infinity')")
    with world.process() as pipeline:
        consume(pipeline)
        apply_all(pipeline)
    run_sql(world.source_url, f"UPDATE {table.table} SET changed = now() WHERE id = 9000")
    with world.process() as pipeline:
        consume(pipeline)
        apply_all(pipeline)
        for entry in pipeline.store.quarantine.entries():
            pipeline.store.quarantine.drop(entry.quarantine_id, "for a test")


def test_an_event_that_two_replay_in_other_groups_counts_once(world: World) -> None:
    """Of a table without a key, whose rows nothing else tells apart."""
    notes = world.tables[2]
    run_sql(world.source_url, "ALTER TABLE notes ADD COLUMN ends date")
    for number in range(3):
        run_sql(world.source_url, f"INSERT INTO notes VALUES ('a{number}', 1, NULL, 'infinity')")
    register_changes(world)
    with world.process() as pipeline:
        apply_all(pipeline)
    run_sql(
        world.store_url, "UPDATE cdc.quarantine SET payload = replace(payload::text, 'infinity', '9999-12-31')::json"
    )
    waiting = QuarantineState.WAITING

    def rival() -> None:
        with world.process() as other:
            other.replay().run(other.store.quarantine.entries(state=waiting))
            apply_all(other)

    with world.process(Meanwhile("cut_file.put", rival)) as pipeline:
        first, *_ = pipeline.store.quarantine.entries(state=waiting)
        with suppress(RegistryError):
            pipeline.replay().run([first])
    go_on(world)
    with world.process() as pipeline:
        found = lake_rows(pipeline, pipeline.lake_table(notes))
    assert sorted((row[0], count) for row, count in found.items() if row[-1] is not None) == [
        ("a0", 1),
        ("a1", 1),
        ("a2", 1),
    ]
