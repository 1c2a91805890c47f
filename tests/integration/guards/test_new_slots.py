"""A slot is created behind the transactions that run: until then nothing is read from it, and the wait is reported."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg2
import pytest
from structlog.testing import capture_logs

from cdc_pipeline.errors import SourceBusy, SourceError
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.postgres.position import SET_UP_WAITS
from cdc_pipeline.sources.postgres.slot import FORMER_SLOT
from tests.crash.world import World
from tests.support.command_line import query
from tests.support.eventually import eventually
from tests.support.guarded import BOTH, CREATE, begin_again, go_on, in_lake, in_source, states, world_of
from tests.support.pipelines import consume, pipeline_settings
from tests.support.streams import database_of, run_sql

HALF_MADE = """
SELECT 1 FROM pg_replication_slots
WHERE database = current_database() AND confirmed_flush_lsn IS NULL AND active_pid IS NOT NULL
"""
CREATE_SLOT = "SELECT pg_create_logical_replication_slot('{}', 'pgoutput')"
DROP_SLOT = "SELECT pg_drop_replication_slot('{}')"


@pytest.fixture
def world(database: str, store_url: str, tmp_path: Path) -> World:
    run_sql(database, *CREATE)
    return world_of(tmp_path, database, store_url, BOTH)


def read_once(world: World) -> None:
    begin_again(world)
    assert go_on(world) == {}


@contextmanager
def open_transaction(database: str, *more: str) -> Iterator[Callable[[], None]]:
    """Yields what commits it."""
    with closing(psycopg2.connect(database)) as writer, writer.cursor() as cursor:
        for statement in (*more, "INSERT INTO orders VALUES (9, 'open')"):
            cursor.execute(statement)
        yield writer.commit


@pytest.mark.parametrize("is_read", [False, True], ids=["a new stream", "a stream that was read"])
def test_nothing_is_read_from_a_slot_that_is_still_being_created(*, is_read: bool, world: World) -> None:
    slot = database_of(world.source_url)
    if is_read:
        read_once(world)
        run_sql(world.source_url, DROP_SLOT.format(slot))
    with open_transaction(world.source_url) as commit, ThreadPoolExecutor(1) as executor:
        creating = executor.submit(run_sql, world.source_url, CREATE_SLOT.format(slot))
        try:
            assert eventually(lambda: bool(query(world.source_url, HALF_MADE)))
            with world.process() as pipeline, pytest.raises(SourceBusy, match=r"is still being created by process \d+"):
                pipeline.source_setup().set_up()
            if is_read:
                with world.process() as pipeline, pytest.raises(SourceBusy, match="is still being created"):
                    consume(pipeline)
        finally:
            commit()
        creating.result()
    if not is_read:
        begin_again(world)
        assert go_on(world) == {}
        assert in_lake(world, "orders") == in_source(world, "orders")


@pytest.mark.parametrize("again", [False, True], ids=["setup-source", "setup-source --begin-again"])
def test_the_transaction_that_a_new_slot_waits_for_is_named(*, again: bool, world: World) -> None:
    if again:
        read_once(world)

    def set_up() -> None:
        with world.process() as pipeline:
            setup = pipeline.source_setup()
            _ = setup.begin_stream_again() if again else setup.set_up()

    with capture_logs() as logs, open_transaction(world.source_url) as commit, ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(set_up)
        try:
            assert eventually(lambda: any(said["event"] == SET_UP_WAITS for said in logs))
        finally:
            commit()
        waiting.result()
    (said, *_) = [said for said in logs if said["event"] == SET_UP_WAITS]
    assert (said["state"], said["query"]) == ("idle in transaction", "INSERT INTO orders VALUES (9, 'open')")
    assert len(states(world)) == len(BOTH)


def test_a_stream_that_begins_again_with_one_more_table_keeps_nobody_from_writing_it(
    world: World, database: str, store_url: str, tmp_path: Path
) -> None:
    """Not even while it waits for who has written the table: the new slot is created behind that transaction."""
    read_once(world)
    run_sql(database, "CREATE TABLE more (id int PRIMARY KEY)")
    wider = world_of(tmp_path, database, store_url, (*BOTH, {"name": "public.more"}))
    written = "INSERT INTO more VALUES (0)"

    def begin() -> Mapping[TableName, SourceError]:
        with wider.process() as pipeline:
            return pipeline.source_setup().begin_stream_again().refused

    with (
        capture_logs() as logs,
        open_transaction(database, written) as commit,
        ThreadPoolExecutor(1) as executor,
    ):
        waiting = executor.submit(begin)
        try:
            assert eventually(lambda: any(said["event"] == SET_UP_WAITS for said in logs))
            run_sql(database, "SET lock_timeout = '1ms'", "INSERT INTO more VALUES (1)")
        finally:
            commit()
        assert waiting.result() == {}


def test_a_stream_that_begins_again_in_another_slot_names_the_one_that_keeps_the_log(world: World) -> None:
    former = database_of(world.source_url)
    read_once(world)
    settings = pipeline_settings(world.settings.folder, world.source_url, list(BOTH), source={"slot": f"{former}_2"})
    renamed = replace(world, settings=settings)
    with renamed.process() as pipeline, capture_logs() as logs:
        pipeline.source_setup().begin_stream_again()
    assert [said["slot"] for said in logs if said["event"] == FORMER_SLOT] == [former]
    (remedy,) = [said["remedy"] for said in logs if said["event"] == FORMER_SLOT]
    run_sql(world.source_url, remedy.partition("run ")[2].removesuffix(" on the source"))
    with renamed.process() as pipeline, capture_logs() as logs:
        pipeline.source_setup().begin_stream_again()
    assert [said for said in logs if said["event"] == FORMER_SLOT] == []


@pytest.mark.parametrize("failover", [False, True])
def test_a_slot_that_begins_again_is_copied_to_standbys_if_it_was_before(*, failover: bool, world: World) -> None:
    slot = database_of(world.source_url)
    read_once(world)
    made = f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', failover => {failover})"
    run_sql(world.source_url, DROP_SLOT.format(slot), made)
    with world.process() as pipeline:
        pipeline.source_setup().begin_stream_again()
    found = query(world.source_url, f"SELECT failover FROM pg_replication_slots WHERE slot_name = '{slot}'")
    assert found == [(failover,)]
