"""`verify` compares a table as of its position, whatever becomes of the table before its turn comes."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from cdc_pipeline.errors import LakeAway, SourceError
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.operations.verification import Verified
from cdc_pipeline.steps import Moment, OnStep, no_step
from tests.crash.test_late_slices import without_a_row
from tests.crash.world import World, apply_all, take_snapshot, waiting_world
from tests.support.pipelines import consume
from tests.support.streams import run_sql


@pytest.fixture
def world(postgres: PostgresServer, tmp_path: Path) -> Iterator[World]:
    with waiting_world(postgres, tmp_path) as world, world.process() as pipeline:
        apply_all(pipeline)
        yield world


def refuse_merges(name: str, moment: Moment) -> None:
    if (name, moment) == ("lake_table.merge", Moment.BEFORE):
        raise LakeAway("nothing answers")


HALF_A_MINUTE = timedelta(seconds=30)
STEPS, IDS = (no_step, refuse_merges), ("the claim is applied", "only its columns are")


def verified_while(world: World, happens: Callable[[], object]) -> tuple[Verified, ...]:
    """The verdicts; `happens` is called once, when the first table is compared and the others are not."""
    left = [happens]

    def on_step(name: str, moment: Moment) -> None:
        if (name, moment) == ("verification_file.delete", Moment.AFTER) and left:
            left.pop()()

    with world.process(on_step) as pipeline:
        return pipeline.verification().verify(world.tables, timeout=HALF_A_MINUTE)


def verified_while_altered(world: World, change: str, on_step: OnStep) -> tuple[Verified, ...]:
    """The lake follows the second table's change of columns before that table is compared."""
    columns = list[tuple[str, ...]]()

    def happens() -> None:
        run_sql(world.source_url, f"ALTER TABLE parts {change}", "INSERT INTO parts (thing, place) VALUES (-1, 'east')")
        parts = world.tables[1]
        with world.process(on_step) as pipeline:
            columns.append(pipeline.lake.read_columns(pipeline.lake_table(parts)))
            consume(pipeline)
            pipeline.slice_runs().apply([parts])
            columns.append(pipeline.lake.read_columns(pipeline.lake_table(parts)))

    found = verified_while(world, happens)
    assert columns[0] != columns[1]
    return found


@pytest.mark.parametrize("on_step", STEPS, ids=IDS)
def test_a_column_that_is_added_after_the_position_is_no_difference(world: World, on_step: OnStep) -> None:
    found = verified_while_altered(world, "ADD COLUMN more int", on_step)
    assert [(each.problem, each.columns_missing, each.columns_extra) for each in found] == [("", (), ())] * 3
    assert [each.is_equal for each in found] == [True] * 3


@pytest.mark.parametrize("on_step", STEPS, ids=IDS)
@pytest.mark.parametrize("change", ["DROP COLUMN amount", "RENAME COLUMN amount TO number"])
def test_a_column_that_goes_after_the_position_is_no_difference_but_cannot_be_read(
    world: World, change: str, on_step: OnStep
) -> None:
    things, parts, notes = verified_while_altered(world, change, on_step)
    assert (things.is_equal, notes.is_equal) == (True, True)
    assert 'column "amount" does not exist' in parts.problem
    assert (parts.comparison, parts.columns_missing, parts.columns_extra) == (None, (), ())


def test_a_newer_snapshot_that_is_published_meanwhile_ends_the_comparison_with_that_reason(world: World) -> None:
    def happens() -> None:
        run_sql(world.source_url, "INSERT INTO parts (thing, place) VALUES (-1, 'east')")
        with world.process() as pipeline:
            take_snapshot(pipeline, world.tables[1:2])

    things, parts, notes = verified_while(world, happens)
    assert (things.is_equal, notes.is_equal) == (True, True)
    assert parts.comparison is None
    assert "a newer snapshot was published meanwhile" in parts.problem
    assert "run cdc verify again" in parts.problem
    with world.process() as pipeline:
        (again,) = pipeline.verification().verify(world.tables[1:2])
    assert again.is_equal


EXCHANGE = "ALTER TABLE {0} RENAME {1} TO x; ALTER TABLE {0} RENAME {2} TO {1}; ALTER TABLE {0} RENAME x TO {2}"
BEGIN_AGAIN = "ALTER TABLE {0} DROP {1}, ADD {1} int DEFAULT 7"


def test_columns_that_got_the_names_of_others_after_the_position_are_not_compared(world: World) -> None:
    def happens() -> None:
        run_sql(world.source_url, BEGIN_AGAIN.format("parts", "amount"), EXCHANGE.format("notes", "amount", "price"))

    things, parts, notes = verified_while(world, happens)
    assert things.is_equal
    assert (parts.comparison, notes.comparison) == (None, None)
    assert 'parts changed its columns while it was to be read: column "amount" does not exist, or' in parts.problem
    assert "notes changed its columns while it was to be read" in notes.problem


def test_a_repair_writes_nothing_of_a_column_that_got_the_name_of_another(world: World) -> None:
    things = without_a_row(world)
    exchange = EXCHANGE.format("things", "name", "body")
    left = [exchange]

    def on_step(name: str, moment: Moment) -> None:
        if (name, moment) == ("table.repair", Moment.ACKNOWLEDGED) and left:
            run_sql(world.source_url, left.pop())

    with world.process(on_step) as pipeline, pytest.raises(SourceError, match=r"things changed its columns.*again$"):
        pipeline.repair().run(things)
    run_sql(world.source_url, exchange)
    with world.process() as pipeline:
        (verdict,) = pipeline.verification().verify([things])
    assert verdict.comparison is not None
    assert [each.kind for each in verdict.comparison.differences] == ["missing"]


def test_a_repair_leaves_a_column_alone_that_is_registered_after_its_position(world: World) -> None:
    things = without_a_row(world)
    left = ["ALTER TABLE things ADD COLUMN more int DEFAULT 7", "UPDATE things SET more = 8 WHERE id = 2"]

    def on_step(name: str, moment: Moment) -> None:
        if (name, moment) == ("table.repair", Moment.ACKNOWLEDGED) and left:
            run_sql(world.source_url, left.pop(0), left.pop())
            with world.process() as other:
                consume(other)

    with world.process(on_step) as pipeline:
        repaired = pipeline.repair().run(things)
    assert (repaired.rows_written, repaired.rows_removed) == (1, 0)
    with world.process() as pipeline:
        (verdict,) = pipeline.verification().verify([things])
    assert verdict.is_equal
