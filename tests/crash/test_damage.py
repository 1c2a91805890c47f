"""Slice files that are no longer what was registered, and a metadata store that is older than the lake."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psycopg2
import pytest

from cdc_pipeline.errors import FenceMismatch, SliceDamaged, SourceAway
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.steps import Moment
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.crash.invariants import check, lake_rows, source_rows
from tests.crash.test_rivals import Meanwhile, cut_off
from tests.crash.world import World, apply_all, go_on, lake_tables, register_changes, registered_files
from tests.support.pipelines import consume
from tests.support.postgres import drop_database
from tests.support.streams import database_of, run_sql

LEDGER = """
    SELECT s.table_id, s.number, s.slice_id, s.path, s.state, b.position, s.claim_id::text, c.lake_version
    FROM cdc.slice AS s JOIN cdc.boundary AS b USING (boundary_id) LEFT JOIN cdc.claim AS c USING (claim_id)
    ORDER BY s.number, s.table_id
    """


def removed(file: Path, _other: Path) -> None:
    file.unlink()


def truncated(file: Path, _other: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def replaced(file: Path, other: Path) -> None:
    file.write_bytes(other.read_bytes())


def bent(file: Path, _other: Path) -> None:
    """One bit."""
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [removed, truncated, replaced, bent])
def test_a_damaged_slice_file_stops_its_table_alone(world: World, damage: Callable[[Path, Path], None]) -> None:
    register_changes(world)
    file, other = registered_files(world)[-2:]
    content = file.read_bytes()
    with world.process() as pipeline:
        things, parts, _ = lake_tables(pipeline)
        before = pipeline.lake.read_version(things), pipeline.lake.read_version(parts)
        damage(file, other)
        first, second = pipeline.slice_runs().apply([things.name, parts.name])
        assert isinstance(first.error, SliceDamaged)
        assert first.exit_code == 1
        assert second.error is None
        after = pipeline.lake.read_version(things), pipeline.lake.read_version(parts)
        assert (after[0], after[1] != before[1]) == (before[0], True)
    assert world.store_query("SELECT state FROM cdc.claim ORDER BY started_at")[0] == ("failed",)
    file.write_bytes(content)
    go_on(world)
    check(world)


def test_a_store_that_lost_applied_slices_catches_up_by_itself(world: World, postgres: PostgresServer) -> None:
    with copied_store(world, postgres) as older:
        for _ in range(2):
            register_changes(world)
            with world.process() as pipeline:
                apply_all(pipeline)
        before = lake_versions(world)
        with older.process() as pipeline:
            for table in lake_tables(pipeline):
                with pytest.raises(FenceMismatch, match=r"no slice in the metadata store.*cdc rebuild"):
                    pipeline.slice_worker().slice_to_lake(table.name)
            consume(pipeline)
            apply_all(pipeline)
        assert lake_versions(world) == before
        assert older.store_query(LEDGER)[: len(known := world.store_query(LEDGER))] == known
        older.rounds = world.rounds
        register_changes(older)
        go_on(older)
        check(older)
    go_on(world)
    check(world)


def test_two_consumers_on_two_stores_never_part_the_stream(world: World, postgres: PostgresServer) -> None:
    """Each of them owns the stream, in its own store; the cut file of whoever comes first decides for both."""
    with copied_store(world, postgres) as older:

        def rival() -> None:
            world.change(marks=1)
            cut_off(world)
            with older.process() as pipeline:
                consume(pipeline)

        world.change(marks=2)
        meanwhile = Meanwhile("cut_file.put", rival)
        with world.process(meanwhile) as pipeline, suppress(SourceAway):
            consume(pipeline)
        assert meanwhile.has_happened
        go_on(world)
        go_on(older)
        assert older.store_query(LEDGER)[: len(known := world.store_query(LEDGER))] == known
        check(older)


def test_a_store_that_lost_slices_which_the_source_still_has_registers_the_same_ones_again(
    world: World, postgres: PostgresServer
) -> None:
    with copied_store(world, postgres) as older:
        world.change(marks=2)
        with pytest.raises(Crash), world.process(Failpoint(Site("slot.confirm", Moment.BEFORE, 1))) as pipeline:
            consume(pipeline)
        with world.process() as pipeline:
            apply_all(pipeline)
        before = lake_versions(world)
        go_on(older)
        registered = "SELECT number, slice_id FROM cdc.slice WHERE table_id = 1 ORDER BY number"
        known = world.store_query(registered)
        assert older.store_query(registered)[: len(known)] == known
        assert lake_versions(world) == [version + 1 for version in before]
        with older.process() as pipeline:
            for table in lake_tables(pipeline):
                assert lake_rows(pipeline, table) == source_rows(older, table)


@pytest.mark.parametrize("column", ["slice_id", "sha256"])
def test_another_slice_under_an_applied_number_is_refused(world: World, column: str) -> None:
    register_changes(world)
    with world.process() as pipeline:
        apply_all(pipeline)
    change = "UPDATE cdc.slice SET {0} = reverse({0}) WHERE table_id = 1 AND path IS NOT NULL"
    run_sql(world.store_url, change.format(column))
    with world.process() as pipeline:
        things, parts, _ = lake_tables(pipeline)
        before = pipeline.lake.read_version(things)
        first, second = pipeline.slice_runs().apply([things.name, parts.name])
        assert isinstance(first.error, FenceMismatch)
        assert second.error is None
        assert pipeline.lake.read_version(things) == before
    run_sql(world.store_url, change.format(column))
    go_on(world)
    check(world)


def lake_versions(world: World) -> list[int]:
    with world.process() as pipeline:
        return [pipeline.lake.read_version(table) or 0 for table in lake_tables(pipeline)]


@contextmanager
def copied_store(world: World, postgres: PostgresServer) -> Iterator[World]:
    """The same source and lake, with the metadata store as it was when it was copied."""
    name = f"{database_of(world.store_url)}_older"
    with closing(psycopg2.connect(postgres.url("postgres"))) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        world.close()
        cursor.execute(f"CREATE DATABASE {name} TEMPLATE {database_of(world.store_url)}")
    try:
        yield replace(world, store_url=postgres.url(name))
    finally:
        drop_database(postgres, name)
