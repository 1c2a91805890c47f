"""Two at once that decide late slices: repairs, and replays of quarantined events."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

import pytest

from cdc_pipeline.apply.table_work import TableWork
from cdc_pipeline.errors import CdcError, LeaseBusy, RegistryError, SnapshotError, SourceAway, StaleEpoch, StoreAway
from cdc_pipeline.metadata_store.snapshots.snapshots import NewSnapshot
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import Moment
from cdc_pipeline.wiring import Pipeline
from tests.crash.invariants import lake_rows, source_rows
from tests.crash.test_rivals import Meanwhile
from tests.crash.world import World, apply_all, go_on, register_changes
from tests.support.pipelines import consume
from tests.support.streams import run_sql


def test_a_repair_that_was_taken_over_decides_nothing_any_more(world: World) -> None:
    """Its rows may be older than a delete that left no tombstone, since the other repair has ended."""
    things = without_a_row(world)

    def rival() -> None:
        world.expire_leases()
        repair_and_delete(world, things)

    with world.process(Meanwhile("slice_file.put", rival)) as pipeline, pytest.raises(StaleEpoch):
        pipeline.repair().run(things)
    go_on(world)
    with world.process() as pipeline:
        table = pipeline.lake_table(things)
        assert lake_rows(pipeline, table) == source_rows(world, table)


@dataclass(slots=True)
class LeaseLost:
    """Behind the step `name` no lease is renewed. Before the next look at the end of the chain, `rival` works."""

    name: str
    rival: Callable[[], object]
    taken: set[str] = field(default_factory=set)

    def __call__(self, name: str, moment: Moment) -> None:
        self.taken.add(name)
        if self.name not in self.taken:
            return
        if name == "lease.renew":
            raise StoreAway("no answer", remedy="wait")
        if name == "chain_base.list" and moment is Moment.BEFORE and "rival" not in self.taken:
            self.taken.add("rival")
            self.rival()


def shortly_leased(pipeline: Pipeline) -> TableWork:
    return replace(pipeline.table_work, lease_length=timedelta(seconds=1))


def test_a_repair_whose_lease_expired_before_the_put_decides_nothing(world: World) -> None:
    things = without_a_row(world)

    lost = LeaseLost("lake_table.compare", partial(repair_and_delete, world, things))
    with world.process(lost) as pipeline, pytest.raises(StaleEpoch, match="could not be renewed in time"):
        replace(pipeline.repair(), work=shortly_leased(pipeline)).run(things)
    go_on(world)
    with world.process() as pipeline:
        table = pipeline.lake_table(things)
        assert lake_rows(pipeline, table) == source_rows(world, table)
        assert not pipeline.store.tables.table(things).under_repair


def test_a_replay_whose_lease_expired_before_the_put_decides_nothing(world: World) -> None:
    with_mended_events(world)
    with world.process() as pipeline:
        event, *_ = pipeline.store.quarantine.entries(state=QuarantineState.WAITING)

    def rival() -> None:
        with world.process() as other:
            other.replay().drop([event.quarantine_id], "a test account")

    lost = LeaseLost("slice_file.put", rival)
    with world.process(lost) as pipeline, pytest.raises(StaleEpoch, match="could not be renewed in time"):
        replace(pipeline.replay(), work=shortly_leased(pipeline)).run([event])
    go_on(world)
    with world.process() as pipeline:
        assert pipeline.store.quarantine.entry(event.quarantine_id).state is QuarantineState.DROPPED


def without_a_row(world: World) -> TableName:
    """Applies changes, and takes a row of the returned table out of the lake."""
    register_changes(world)
    with world.process() as pipeline:
        apply_all(pipeline)
    lose_a_row(world, world.tables[0])
    return world.tables[0]


def repair_and_delete(world: World, things: TableName) -> None:
    """What another worker does: repairs the table, which lacks a row, and applies a delete of all rows."""
    with world.process() as other:
        assert other.repair().run(things).rows_written == 1
    run_sql(world.source_url, f"DELETE FROM {things.table}")
    with world.process() as other:
        consume(other)
        apply_all(other)


def begin_snapshot(world: World, table: TableName) -> None:
    """One that an orchestrator has registered and nobody works on."""
    with world.process() as other:
        row = other.store.tables.table(table)
        cutoff = NewSnapshot(
            snapshot_id="under way",
            table_id=row.table_id,
            cutoff_offset=str(row.cutoff_offset),
            cutoff_version=str(row.cutoff_version),
            cutoff_time=row.registered_at,
            schema_id=str(row.schema_id),
        )
        other.store.snapshots.create_snapshot(cutoff)


def test_a_repair_is_refused_while_a_snapshot_is_taken(world: World) -> None:
    begin_snapshot(world, world.tables[0])
    with world.process() as pipeline, pytest.raises(SnapshotError, match="is being taken"):
        pipeline.repair().run(world.tables[0])


def test_a_repair_that_waits_for_a_snapshot_gives_up_in_time(world: World) -> None:
    """The snapshot began between the registration of the late slice and its application."""
    things = without_a_row(world)
    rounds = Counter[str]()

    def begin_then_count(step: str, moment: Moment) -> None:
        if step == "slice_file.put" and moment is Moment.BEFORE:
            begin_snapshot(world, things)
        rounds[step] += moment is Moment.BEFORE
        if rounds["fence.read"] > 50:
            raise AssertionError("it does not pause")

    with world.process(begin_then_count) as pipeline, pytest.raises(CdcError, match="in the time given"):
        pipeline.repair().run(things, timeout=timedelta(seconds=2))


@pytest.mark.parametrize("name", ["lake_table.compare", "slice_file.put", "chain_base.list"])
def test_a_repair_that_fails_leaves_no_mark(world: World, name: str) -> None:
    """With the mark, every later delete of the table would leave a tombstone, and none would be purged."""
    things, taken = without_a_row(world), set[str]()

    def fail(step: str, moment: Moment) -> None:
        taken.add(step)
        if step == name and "lake_table.compare" in taken and moment is Moment.BEFORE:
            raise SourceAway("the source is away", remedy="start it")

    with world.process(fail) as pipeline:
        (repaired,) = pipeline.repair().run_each([things])
        assert "the source is away" in str(repaired.problem)
        assert not pipeline.store.tables.table(things).under_repair


def test_a_repair_that_fails_after_a_cut_took_its_place_in_the_chain_leaves_no_mark(world: World) -> None:
    things, taken = without_a_row(world), set[str]()

    def cut_then_fail(step: str, moment: Moment) -> None:
        taken.add(step)
        if moment is not Moment.BEFORE or "lake_table.compare" not in taken:
            return
        if step == "cut_file.put":
            taken.add("the other cut")
            register_changes(world)
        if step == "chain_base.list" and "the other cut" in taken:
            raise StoreAway("no answer", remedy="wait")

    with world.process(cut_then_fail) as pipeline:
        (repaired,) = pipeline.repair().run_each([things])
        assert "no answer" in str(repaired.problem)
        assert not pipeline.store.tables.table(things).under_repair


def test_a_table_that_is_rewritten_before_it_is_copied_is_not_repaired(world: World) -> None:
    """To the held snapshot it is empty, so every row of the lake would be deleted."""
    things = without_a_row(world)
    with world.process() as pipeline:
        before = lake_rows(pipeline, pipeline.lake_table(things))
    rewrite = f"ALTER TABLE {things.table} ALTER id TYPE bigint"
    with world.process(Meanwhile("table.repair", lambda: run_sql(world.source_url, rewrite))) as pipeline:
        (repaired,) = pipeline.repair().run_each([things])
        assert "was rewritten, truncated or parted otherwise" in str(repaired.problem)
        assert not pipeline.store.tables.table(things).under_repair
        assert lake_rows(pipeline, pipeline.lake_table(things)) == before


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
        pipeline.replay().drop([entry.quarantine_id for entry in pipeline.store.quarantine.entries()], "for a test")


def with_mended_events(world: World) -> TableName:
    """Quarantines three events of the returned table, and corrects their texts."""
    run_sql(world.source_url, "ALTER TABLE notes ADD COLUMN ends date")
    for number in range(3):
        run_sql(world.source_url, f"INSERT INTO notes VALUES ('a{number}', 1, NULL, 'infinity')")
    register_changes(world)
    with world.process() as pipeline:
        apply_all(pipeline)
    mend = "UPDATE cdc.quarantine SET payload = replace(payload::text, 'infinity', '9999-12-31')::json"
    run_sql(world.store_url, mend)
    return world.tables[2]


def test_what_is_being_replayed_is_neither_dropped_nor_removed_with_its_table(world: World) -> None:
    """A drop would be overwritten; the table would come back, because its late slice is decided already."""
    notes = with_mended_events(world)
    with world.process() as pipeline:
        event, *_ = pipeline.store.quarantine.entries(state=QuarantineState.WAITING)

    def rival() -> None:
        with world.process() as other:
            at_once = replace(other.replay(), timeout=timedelta(0))
            for drop in (
                lambda: at_once.drop([event.quarantine_id], "no"),
                lambda: at_once.drop_waiting_of(notes, "no"),
            ):
                with pytest.raises(LeaseBusy, match="held by"):
                    drop()
            with pytest.raises(LeaseBusy, match="is at work"):
                replace(other.removal(), listed=()).remove_table(notes, with_lake=False)

    meanwhile = Meanwhile("quarantine.replay", rival)
    with world.process(meanwhile) as pipeline:
        (outcome,) = pipeline.replay().run([event])
        assert outcome.state is QuarantineState.REPLAYED
        assert pipeline.store.quarantine.entry(event.quarantine_id).state is QuarantineState.REPLAYED
    assert meanwhile.has_happened


def test_an_event_that_two_replay_in_other_groups_counts_once(world: World) -> None:
    """Of a table without a key, whose rows nothing else tells apart."""
    notes = with_mended_events(world)
    waiting = QuarantineState.WAITING

    def rival() -> None:
        world.expire_leases()
        with world.process() as other:
            other.replay().run(other.store.quarantine.entries(state=waiting))
            apply_all(other)

    with world.process(Meanwhile("cut_file.put", rival)) as pipeline:
        first, *_ = pipeline.store.quarantine.entries(state=waiting)
        with suppress(RegistryError, StaleEpoch):
            pipeline.replay().run([first])
    go_on(world)
    with world.process() as pipeline:
        found = lake_rows(pipeline, pipeline.lake_table(notes))
    assert sorted((row[0], count) for row, count in found.items() if row[-1] is not None) == [
        ("a0", 1),
        ("a1", 1),
        ("a2", 1),
    ]
