"""A snapshot of many tasks: what is asked at each poll reads no task of another kind, and pauses in no transaction."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg2.extensions
import pytest
from sqlalchemy import Connection, Engine, event, text

from cdc_pipeline.metadata_store.database import BATCH_ROWS
from cdc_pipeline.metadata_store.snapshots.snapshot_tasks import NewTask
from cdc_pipeline.metadata_store.states import TaskKind, TaskState
from tests.integration.metadata_store.test_plans import recorded, rows_touched
from tests.support.metadata_store import MINUTE, Shop, opened_shop

MANY = 10_500
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


@dataclass(slots=True)
class RowsAtATime:
    """The rows of each statement that an engine sends, and of each answer that it fetches."""

    sent: list[int] = field(default_factory=list)
    fetched: list[int] = field(default_factory=list)


@contextmanager
def rows_at_a_time(engine: Engine) -> Iterator[RowsAtATime]:
    """The server ends a session that is idle in a transaction, as it is while these rows are worked on."""
    found = RowsAtATime()

    class Cursor(psycopg2.extensions.cursor):
        def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
            rows = super().fetchmany(size)
            found.fetched.append(len(rows))
            return rows

        def fetchall(self) -> list[tuple[Any, ...]]:
            rows = super().fetchall()
            found.fetched.append(len(rows))
            return rows

    def look(connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        driver.cursor_factory = Cursor

    def count(_: Connection, __: object, rows: Sequence[object], *___: object) -> None:
        found.sent.append(len(rows))

    event.listen(engine, "begin", look)
    event.listen(engine, "before_execute", count)
    yield found
    event.remove(engine, "begin", look)
    event.remove(engine, "before_execute", count)


def test_many_tasks_are_read_and_added_without_a_pause_in_the_transaction(shop: Shop) -> None:
    tasks = shop.store.snapshot_tasks
    again = [NewTask(kind=TaskKind.EXPORT, ordinal=number, input={"first": number}) for number in range(MANY)]
    with rows_at_a_time(shop.engine) as rows:
        found = tasks.tasks("first", TaskKind.EXPORT)
        tasks.add_tasks("first", again)
    assert [task.ordinal for task in found] == list(range(MANY))
    assert sum(rows.sent) == MANY
    assert sum(rows.fetched) == 2 * MANY
    assert max(rows.sent + rows.fetched) <= BATCH_ROWS


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
