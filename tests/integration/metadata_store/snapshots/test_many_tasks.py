"""A snapshot of many tasks: what is asked at each poll reads no task of another kind, and pauses in no transaction."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, Engine, event, text

from cdc_pipeline.metadata_store.snapshots.snapshot_tasks import NewTask
from cdc_pipeline.metadata_store.states import TaskKind, TaskState
from tests.integration.metadata_store.test_plans import recorded, rows_touched
from tests.support.metadata_store import MINUTE, Shop, opened_shop

MANY = 60_000
LONGEST_PAUSE = "1s"
ADD_EXPORTS = text("""
    INSERT INTO cdc.snapshot_task (snapshot_id, kind, ordinal, state, attempt, input, output)
    SELECT 'first', 'export', n, 'done', 1, jsonb_build_object('first', n), '{"snapshot_key": "a", "file_id": "b"}'
    FROM generate_series(0, :many - 1) AS n
    """)


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    with opened_shop(database) as shop:
        shop.store.snapshots.create_snapshot(shop.new_snapshot(3))
        with shop.engine.begin() as connection:
            connection.execute(ADD_EXPORTS, {"many": MANY})
        shop.store.snapshot_tasks.add_tasks(
            "first", [NewTask(kind=TaskKind.STAGE, ordinal=number, input={}) for number in range(3)]
        )
        with shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
        yield shop


@contextmanager
def impatient(engine: Engine) -> Iterator[None]:
    """The server ends a session that pauses in a transaction sooner than it does else.

    The garbage collector passes over what other tests left in this process: that alone may take a second.
    """

    def limit(connection: Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{LONGEST_PAUSE}'")

    gc.collect()
    gc.freeze()
    event.listen(engine, "begin", limit)
    yield
    event.remove(engine, "begin", limit)
    gc.unfreeze()


def test_many_tasks_are_read_and_added_without_a_pause_in_the_transaction(shop: Shop) -> None:
    tasks = shop.store.snapshot_tasks
    again = [NewTask(kind=TaskKind.EXPORT, ordinal=number, input={"first": number}) for number in range(MANY)]
    with impatient(shop.engine):
        found = tasks.tasks("first", TaskKind.EXPORT)
        tasks.add_tasks("first", again)
    assert [task.ordinal for task in found] == list(range(MANY))


def test_a_few_tasks_are_found_without_reading_those_of_another_kind(shop: Shop) -> None:
    tasks = shop.store.snapshot_tasks
    with recorded(shop.engine) as statements:
        assert len(tasks.tasks("first", TaskKind.STAGE)) == 3
        assert tasks.counts("first", TaskKind.STAGE) == {TaskState.WAITING: 3}
        for kind, finds in ((TaskKind.EXPORT, False), (TaskKind.STAGE, True)):
            claimed = tasks.claim_task(slot="slot", duration=MINUTE, snapshot_ids=["first"], kinds=[kind])
            assert (claimed is not None) is finds
    assert max(rows_touched(shop.engine, *each) for each in statements) < 20


def test_tasks_are_counted_by_state_and_those_of_one_state_found(shop: Shop) -> None:
    tasks = shop.store.snapshot_tasks
    claimed = tasks.claim_task(slot="slot", duration=MINUTE, snapshot_ids=["first"], kinds=[TaskKind.STAGE])
    assert claimed is not None
    assert tasks.counts("first", TaskKind.STAGE) == {TaskState.WAITING: 2, TaskState.CLAIMED: 1}
    assert tasks.tasks("first", TaskKind.STAGE, state=TaskState.CLAIMED) == (claimed,)
    assert tasks.counts("first", TaskKind.COMPACT) == {}
    assert tasks.counts("first", TaskKind.EXPORT) == {TaskState.DONE: MANY}
