"""Replays and drops beside other processes that work on the tables of the events."""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import chain

import pytest

from cdc_pipeline.errors import LeaseBusy
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.metadata_store.ledger.quarantine import QuarantineEntry
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.operations.replay import Replayed
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import Moment
from cdc_pipeline.wiring import Pipeline
from tests.crash.test_rivals import Meanwhile
from tests.crash.world import World, apply_all, register_changes
from tests.support.eventually import eventually
from tests.support.metadata_store import MINUTE
from tests.support.streams import run_sql

WAITING, REPLAYED, DROPPED = QuarantineState.WAITING, QuarantineState.REPLAYED, QuarantineState.DROPPED
AT_ONCE = timedelta(0)
MEND = "UPDATE cdc.quarantine SET payload = replace(payload::text, 'infinity', '9999-12-31')::json"


@dataclass(slots=True)
class Acquisitions:
    """Counts how often a lease is asked for."""

    moments: list[Moment] = field(default_factory=list)

    def __call__(self, name: str, moment: Moment) -> None:
        if name == "lease.acquire" and moment is Moment.BEFORE:
            self.moments.append(moment)


def with_two_tables(world: World) -> tuple[TableName, TableName]:
    """Quarantines an event of each returned table, and corrects their texts; the first has the lower number."""
    things, _, notes = world.tables
    run_sql(
        world.source_url,
        "ALTER TABLE things ADD COLUMN ends date",
        "ALTER TABLE notes ADD COLUMN ends date",
        "INSERT INTO things VALUES (9000, 'never', 'x', 1.5, now(), 'infinity')",
        "INSERT INTO notes VALUES ('a', 1, NULL, 'infinity')",
    )
    register_changes(world)
    with world.process() as pipeline:
        apply_all(pipeline)
    run_sql(world.store_url, MEND)
    return things, notes


def waiting(pipeline: Pipeline) -> tuple[QuarantineEntry, ...]:
    return tuple(chain.from_iterable(pipeline.store.quarantine.waiting()))


def taken(pipeline: Pipeline, *tables: TableName) -> list[Lease]:
    numbers = [pipeline.store.tables.table(table).table_id for table in tables]
    return [pipeline.store.leases.acquire(number, owner="another", duration=MINUTE) for number in numbers]


def by_table(pipeline: Pipeline, outcomes: Sequence[Replayed]) -> dict[TableName, Replayed]:
    return {pipeline.store.tables.table_by_id(each.table_id).name: each for each in outcomes}


def test_events_of_a_busy_table_wait_and_those_of_the_next_table_are_replayed(world: World) -> None:
    things, notes = with_two_tables(world)
    with world.process() as pipeline:
        taken(pipeline, things)
        found = by_table(pipeline, replace(pipeline.replay(), timeout=AT_ONCE).run(waiting(pipeline)))
    assert (found[things].state, found[notes].state) == (WAITING, REPLAYED)
    assert "is held by another until" in found[things].why


def test_an_event_that_was_corrected_wrongly_keeps_no_other_table_from_replay(world: World) -> None:
    things, notes = with_two_tables(world)
    number = "jsonb_set(payload::jsonb, '{price}', '1.5')::json"
    run_sql(world.store_url, f"UPDATE cdc.quarantine SET payload = {number} WHERE payload::jsonb ->> 'id' = '9000'")
    with world.process() as pipeline:
        found = by_table(pipeline, pipeline.replay().run_waiting())
    assert (found[things].state, found[notes].state) == (WAITING, REPLAYED)
    assert found[things].why == "price of its payload is 1.5; expected a text in quotes"


def test_a_replay_waits_until_the_table_is_free(world: World) -> None:
    with_two_tables(world)
    with world.process() as other:
        (entry, *_) = waiting(other)
        (lease,) = taken(other, other.store.tables.table_by_id(entry.table_id).name)

        def release_at_first(name: str, moment: Moment) -> None:
            asked(name, moment)
            if name == "lease.acquire" and moment is Moment.ACKNOWLEDGED:
                other.store.leases.release(lease)

        asked = Acquisitions()
        with world.process(release_at_first) as pipeline:
            (outcome,) = pipeline.replay().run([entry])
    assert (outcome.state, len(asked.moments)) == (REPLAYED, 2)


def test_a_call_has_one_deadline_for_all_its_tables(world: World) -> None:
    tables, asked = with_two_tables(world), Acquisitions()
    with world.process(asked) as pipeline:
        taken(pipeline, *tables)
        asked.moments.clear()
        limited = replace(pipeline.replay(), timeout=timedelta(seconds=2))
        assert [each.state for each in limited.run(waiting(pipeline))] == [WAITING, WAITING]
    most_in_two_seconds, of_the_other_table = 12, 1
    assert len(asked.moments) <= most_in_two_seconds + of_the_other_table


def test_what_a_replay_takes_for_one_table_does_not_count_as_waiting_for_the_next(world: World) -> None:
    _, notes = with_two_tables(world)
    timeout, held = timedelta(seconds=3), list[Lease]()
    with world.process() as other:

        def take_for_long(name: str, moment: Moment) -> None:
            if name == "cut_file.put" and moment is Moment.BEFORE and not held:
                held.extend(taken(other, notes))
                assert eventually(lambda: time.monotonic() > began + timeout.total_seconds())
            if name == "lease.acquire" and moment is Moment.ACKNOWLEDGED and held:
                other.store.leases.release(held[0])

        with world.process(take_for_long) as pipeline:
            events, began = waiting(pipeline), time.monotonic()
            found = by_table(pipeline, replace(pipeline.replay(), timeout=timeout).run(events))
    assert (held[0].owner, found[notes].state) == ("another", REPLAYED)


def test_a_replay_of_all_events_holds_those_of_one_table_at_a_time(world: World) -> None:
    tables, held = with_two_tables(world), list[set[int]]()

    def look(name: str, moment: Moment) -> None:
        if name == "cut_file.put" and moment is Moment.BEFORE:
            held.append({each.table_id for each in gc.get_objects() if type(each) is QuarantineEntry})

    with world.process(look) as pipeline:
        assert {each.state for each in pipeline.replay().run_waiting()} == {REPLAYED}
        numbers = [pipeline.store.tables.table(table).table_id for table in tables]
    assert held == [{number} for number in numbers]


def test_what_was_dropped_before_the_lease_was_free_is_not_replayed(world: World) -> None:
    with_two_tables(world)
    with world.process() as other:
        (entry, *_) = waiting(other)
        meanwhile = Meanwhile("lease.acquire", lambda: other.replay().drop([entry.quarantine_id], "a test account"))
        with world.process(meanwhile) as pipeline:
            (outcome,) = pipeline.replay().run([entry])
    assert (outcome.state, outcome.why) == (DROPPED, "a test account")


def test_events_of_a_table_that_is_removed_meanwhile_hold_up_no_others(world: World) -> None:
    things, _ = with_two_tables(world)
    with world.process() as other:
        removal = replace(other.removal(), listed=())
        meanwhile = Meanwhile("lease.acquire", lambda: removal.remove_table(things, with_lake=False))
        with world.process(meanwhile) as pipeline:
            gone, replayed = sorted(pipeline.replay().run(waiting(pipeline)), key=lambda each: each.table_id)
    assert (gone.state, replayed.state) == (WAITING, REPLAYED)
    assert "is no longer in the metadata store" in gone.why


def test_a_drop_holds_one_lease_at_a_time(world: World) -> None:
    """While it waits for one table, others could not be worked on."""
    things, notes = with_two_tables(world)
    with world.process() as pipeline:
        taken(pipeline, notes)
        ids = [entry.quarantine_id for entry in waiting(pipeline)]
        at_once = replace(pipeline.replay(), timeout=AT_ONCE)
        with pytest.raises(LeaseBusy, match="held by another"):
            at_once.drop(ids, "a test account")
        states = {
            pipeline.store.tables.table_by_id(each.table_id).name: each.state
            for each in pipeline.store.quarantine.chosen(ids)
        }
        assert states == {things: DROPPED, notes: WAITING}
        world.expire_leases()
        assert {entry.state for entry in at_once.drop(ids, "a test account")} == {DROPPED}
