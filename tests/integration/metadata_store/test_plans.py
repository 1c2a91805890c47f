"""Nothing that a worker asks of the store grows with the history: every plan finds its rows by an index."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from cdc_pipeline.metadata_store.states import TaskKind
from cdc_pipeline.record import encode_position
from snapshot.hand_offs import new_tasks
from tests.support.doc_pages import blocks
from tests.support.metadata_store import MINUTE, OWNER, PARTITIONS, Shop, mark_applied, opened_shop
from tests.support.version_vector import version_vector

HISTORY = 50_000
BACKLOG = 40
LONG_HISTORY = text("""
    WITH boundaries AS (
        INSERT INTO cdc.boundary (stream, position, commit_time, label_start, label_end, requested)
        SELECT 'shop', lpad(to_hex(n), 16, '0'), timestamptz '2024-01-01' + n * interval '1 minute',
               '2024-01-01', '2024-01-02', false
        FROM generate_series(1, :history) AS n
        RETURNING boundary_id, position
    ), claims AS (
        INSERT INTO cdc.claim (claim_id, table_id, first_number, last_number, epoch, owner, attempt, state,
                               lake_version)
        SELECT gen_random_uuid(), :table_id, n, n, 1, 'worker', 1, 'applied', n
        FROM generate_series(1, :applied, 10) AS n
    )
    INSERT INTO cdc.slice (table_id, number, slice_id, boundary_id, stream_partition, label_start, label_end,
                           start_offset, end_offset, path, sha256, schema_id, rows, state)
    SELECT :table_id, n, 'slice ' || n, boundary_id, 0, '2024-01-01', '2024-01-02',
           lpad(to_hex(n - 1), 16, '0'), lpad(to_hex(n), 16, '0'),
           'file', 'hash', :schema, CASE WHEN n % 3 = 0 THEN 5 ELSE 0 END,
           CASE WHEN n <= :applied THEN 'applied' ELSE 'registered' END
    FROM generate_series(1, :history) AS n JOIN boundaries ON position = lpad(to_hex(n), 16, '0')
    ORDER BY n
    """)
CATCH_UP = """
    UPDATE cdc.source_table SET next_slice_number = 50001, state = 'live', cutoff_offset = '0000000000000000',
                                cutoff_time = '2024-01-01', followed_at = '000000000000c350' WHERE table_id = 1;
    UPDATE cdc.stream_partition SET next_offset = '000000000000c350'
    """
BOTH_ARE_IN_THE_LAKE = """
    UPDATE cdc.source_table SET state = 'live', cutoff_offset = '0000000000000000', cutoff_time = '2024-01-01',
                                followed_at = '000000000000c350' WHERE table_id = 2;
    INSERT INTO cdc.snapshot (snapshot_id, table_id, state, cutoff_offset, cutoff_version, cutoff_time, schema_id,
                              fence_number, lake_version, finished_at)
    SELECT 'first', 2, 'published', '0000000000000000', '', '2024-01-01', schema_id, 0, 7, '2024-01-01'
    FROM cdc.table_schema WHERE table_id = 2;
    UPDATE cdc.slice SET claim_id = (SELECT claim_id FROM cdc.claim WHERE first_number = 49951)
    WHERE number BETWEEN 49951 AND 49960
    """
ENDED_PARTITIONS = text("""
    INSERT INTO cdc.stream_partition (stream, stream_partition, next_offset, watermark, last_position)
    SELECT 'shop', 100 + n, lpad(to_hex(n), 16, '0'), '2024-01-01', '{"ended": ""}'
    FROM generate_series(1, :history) AS n
    """)

FINISHED = 5_000
FINISHED_TASKS = text("""
    INSERT INTO cdc.snapshot_task (snapshot_id, kind, ordinal, state, input, created_at, finished_at)
    SELECT 'first', 'export', n, 'done', '{}', now() - interval '1 hour', now() - interval '1 hour'
    FROM generate_series(1, :history) AS n
    """)
WAITING_EVENTS = text("""
    INSERT INTO cdc.quarantine (table_id, stream_partition, version, start_offset, end_offset, reason, "column",
                                payload, place)
    SELECT 1, 0, '0', '0', '1', 'no', 'note', '{}', '0000000000000001-' || n FROM generate_series(1, :history) AS n
    """)


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    with opened_shop(database) as shop:
        with shop.engine.begin() as connection:
            parameters = {"history": HISTORY, "applied": HISTORY - BACKLOG, "table_id": 1, "schema": shop.schema_id}
            connection.execute(LONG_HISTORY, parameters)
            connection.exec_driver_sql(CATCH_UP)
            connection.execute(ENDED_PARTITIONS, {"history": HISTORY})
        with shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
        yield shop


@contextmanager
def recorded(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    """Statements with their parameters, as they go to the server."""
    statements: list[tuple[str, Any]] = []

    def keep(_c: object, _cursor: object, statement: str, parameters: object, _context: object, _many: object) -> None:
        statements.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", keep)
    yield statements
    event.remove(engine, "before_cursor_execute", keep)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def rows_touched(engine: Engine, statement: str, parameters: Any) -> int:
    """Rows that the plan's scans really read, those that a filter threw away too; the effect is rolled back."""
    one = parameters[0] if isinstance(parameters, list) else parameters
    with engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", one).scalar_one()
        connection.rollback()
    document = plan if isinstance(plan, list) else json.loads(plan)
    scans = [node for node in nodes(document[0]["Plan"]) if "Relation Name" in node and "Scan" in node["Node Type"]]
    return sum(
        int(node["Actual Loops"]) * (int(node["Actual Rows"]) + int(node.get("Rows Removed by Filter", 0)))
        for node in scans
    )


def next_slices(shop: Shop) -> None:
    after = HISTORY - BACKLOG
    assert shop.store.slices.next_slices(1, after_number=after, most_slices=20, most_rows=1000)


def claim_and_fail(shop: Shop) -> None:
    lease = shop.acquire()
    claim = shop.claim(lease, after=HISTORY - BACKLOG, most_slices=20)
    shop.store.claims.mark_failed(lease, claim, "no")
    shop.store.leases.release(lease)


def claim_and_apply(shop: Shop) -> None:
    lease = shop.acquire()
    claim = shop.claim(lease, after=HISTORY - BACKLOG, most_slices=20)
    assert shop.store.claims.open_claim(1) == claim
    mark_applied(shop.store, lease, claim, lake_version=1)
    shop.store.leases.release(lease)


def mark_through(shop: Shop) -> None:
    lease = shop.acquire()
    shop.store.claims.mark_applied_through(lease, HISTORY - 10, lake_version=1)
    shop.store.leases.release(lease)


def lake_position(shop: Shop) -> None:
    position = shop.store.lake_positions.lake_position(1)
    assert position.position == encode_position(HISTORY - BACKLOG)


def vector_at_a_boundary(shop: Shop) -> None:
    assert version_vector(shop.store, HISTORY // 2)


def register(shop: Shop) -> None:
    shop.register(shop.cut(HISTORY, HISTORY + 1, {(1, 0): 5, (1, 1): 5}))


def share(shop: Shop) -> None:
    consumers, lifetime = shop.store.consumers, timedelta(seconds=10)
    assert consumers.beat("shop", owner="consumer", lifetime=lifetime) == {0, 1}
    assert consumers.take_share("shop", owner="consumer", lifetime=lifetime, first_offset="0") is not None
    consumers.leave("shop", owner="consumer")


def take(shop: Shop) -> None:
    streams = shop.store.streams
    assert streams.next_offset("shop") == encode_position(HISTORY + 1)
    assert streams.count_partitions("shop", most=2) == len(PARTITIONS)
    streams.add_partitions("shop", PARTITIONS)
    assert streams.take_stream("shop", owner=OWNER, first_offset="0").next_offset.keys() == set(PARTITIONS)


def lag(shop: Shop) -> None:
    assert shop.store.inspection.run("lag")


def newest(name: str) -> Callable[[Shop], None]:
    def ask(shop: Shop) -> None:
        assert len(shop.store.inspection.run(name, {"limit": 5})) == 5

    ask.__name__ = name
    return ask


QUESTIONS: tuple[Callable[[Shop], None], ...] = (
    next_slices,
    lake_position,
    vector_at_a_boundary,
    lag,
    newest("claims"),
    newest("slices"),
    newest("boundaries"),
    claim_and_fail,
    claim_and_apply,
    mark_through,
    register,
    take,
    share,
)


def test_with_a_long_history_only_rows_of_the_backlog_are_touched(shop: Shop) -> None:
    touched: dict[tuple[str, str], int] = {}
    for ask in QUESTIONS:
        with recorded(shop.engine) as statements:
            ask(shop)
        for statement, parameters in statements:
            if statement.split()[0] in ("SELECT", "UPDATE", "--"):
                touched[ask.__name__, statement] = rows_touched(shop.engine, statement, parameters)
    assert {name for name, _ in touched} == {ask.__name__ for ask in QUESTIONS}
    assert {place: rows for place, rows in touched.items() if rows > 4 * BACKLOG} == {}


def test_the_position_in_a_stream_that_consumers_share_touches_the_slices_that_wait(shop: Shop) -> None:
    named = """UPDATE cdc.stream_partition SET watermark = '2024-01-01', last_position = '{"partition": "one"}'"""
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(f"{named} WHERE NOT (last_position ? 'ended')")
    with recorded(shop.engine) as statements:
        lake_position(shop)
    touched = [rows_touched(shop.engine, *each) for each in statements if "v_lake_position" in each[0]]
    assert BACKLOG <= sum(touched) < 4 * BACKLOG


def test_that_a_long_snapshot_goes_on_is_known_without_a_look_at_its_finished_tasks(shop: Shop) -> None:
    store = shop.store
    store.stale_tables.mark(1, "its columns changed", snapshot_wanted=True)
    store.snapshots.create_snapshot(shop.new_snapshot(1))
    with shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("UPDATE cdc.snapshot SET started_at = started_at - interval '1 hour'")
        connection.execute(FINISHED_TASKS, {"history": FINISHED})
        connection.exec_driver_sql("VACUUM ANALYZE cdc.snapshot, cdc.snapshot_task")
    with recorded(shop.engine) as statements:
        assert store.stale_tables.wanting_snapshot() == {1}
    assert rows_touched(shop.engine, *statements[0]) >= FINISHED, "the measure sees the tasks where none is claimed"
    store.snapshot_tasks.add_tasks("first", new_tasks(TaskKind.COMPACT, [{}]))
    kinds = [TaskKind.COMPACT]
    assert store.snapshot_tasks.claim_task(slot="a slot", duration=MINUTE, snapshot_ids=["first"], kinds=kinds)
    assert store.stale_tables.wanting_snapshot() == set()
    assert 0 < rows_touched(shop.engine, *statements[0]) < BACKLOG


def test_the_lag_reads_each_event_in_quarantine_three_times_at_most(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        connection.execute(WAITING_EVENTS, {"history": HISTORY})
    with recorded(shop.engine) as statements:
        lag(shop)
    touched = [rows_touched(shop.engine, *each) for each in statements if "v_table_lag" in each[0]]
    assert 0 < sum(touched) < 3.5 * HISTORY


def test_the_lag_counts_incomplete_rows_by_an_index_alone(shop: Shop) -> None:
    with shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("UPDATE cdc.claim SET rows_incomplete = 1")
        connection.exec_driver_sql("VACUUM ANALYZE cdc.claim")
        plan = connection.exec_driver_sql("EXPLAIN (FORMAT JSON) SELECT * FROM cdc.v_table_lag").scalar_one()
    found = {(node.get("Index Name"), node["Node Type"]) for node in nodes(plan[0]["Plan"])}
    assert {kind for index, kind in found if index == "claim_incomplete"} == {"Index Only Scan"}


def test_the_page_finds_the_newest_consistent_versions_without_reading_the_history(shop: Shop) -> None:
    (query,) = blocks("docs/reference/inspection.md", "sql", "## v_boundary_vector\n")[:1]
    with shop.engine.begin() as connection:
        assert connection.exec_driver_sql(query).all() == []
        unfound = rows_touched(shop.engine, query, None)
        connection.exec_driver_sql(BOTH_ARE_IN_THE_LAKE)
        (found,) = connection.exec_driver_sql(query).all()
    assert found.versions == {"shop.public.customers": 7, "shop.public.orders": 49_951}
    assert max(unfound, rows_touched(shop.engine, query, None)) < 4 * BACKLOG


def test_the_measure_sees_a_scan_of_the_history(shop: Shop) -> None:
    assert rows_touched(shop.engine, "SELECT FROM cdc.slice WHERE size_bytes = 1", {}) >= HISTORY
