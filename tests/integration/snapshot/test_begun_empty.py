"""A lake table that begins empty: what another process did to the table meanwhile stays, and a failure pauses it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cdc_pipeline.errors import LakeError, SnapshotError, TableStale
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.steps import Moment, OnStep
from cdc_pipeline.wiring import Pipeline
from snapshot.wiring import export_at
from tests.crash.world import apply_all, take_snapshot
from tests.support.change_files import csv_text, json_lines
from tests.support.exports import ExportedTables, lake_rows, named
from tests.support.pipelines import set_up_and_consume
from tests.support.streams import run_sql

ORDERS = named("orders")
REASON = "its first changes are missing"


@pytest.fixture
def tables(tmp_path: Path, store_url: str) -> ExportedTables:
    """One change of row 9 is registered; the lake does not have the table."""
    source = {"format": "upserts", "order_by": ["n"], "operation_column": "op"}
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source=source)
    tables.write("files/orders/1.jsonl", json_lines([{"op": "U", "n": 1, "id": 9, "name": "Eve", "amount": "1.50"}]))
    with tables.opened() as pipeline:
        set_up_and_consume(pipeline)
    return tables


def once_before(name: str, tables: ExportedTables, deed: Callable[[Pipeline], object]) -> OnStep:
    """Another process does the deed just before the first step of this name."""
    left = [name]

    def on_step(step: str, moment: Moment) -> None:
        if moment is Moment.BEFORE and step in left:
            left.clear()
            with tables.opened() as other:
                deed(other)

    return on_step


def test_rows_of_exported_files_that_were_published_meanwhile_stay(tables: ExportedTables) -> None:
    rows = [{"id": id_, "name": "of the export", "amount": "0.50"} for id_ in (1, 2)]
    tables.write("export/a.csv", csv_text(rows))
    place = export_at(str(tables.folder / "export"), "start")

    def publish(other: Pipeline) -> None:
        assert [taken.rows for taken in take_snapshot(other, [ORDERS], export=place)] == [2]

    with tables.opened(once_before("lease.acquire", tables, publish)) as pipeline:
        pipeline.slice_runs().apply([ORDERS])
        apply_all(pipeline)
        assert [row["id"] for row in lake_rows(pipeline, ORDERS)] == [1, 2, 9]


@pytest.mark.parametrize("step", ["lease.acquire", "snapshot.create", "snapshot.set_state", "snapshot.publish"])
def test_a_table_that_became_stale_meanwhile_stays_stale(tables: ExportedTables, step: str) -> None:
    def mark(other: Pipeline) -> None:
        other.store.stale_tables.mark(other.store.tables.table(ORDERS).table_id, REASON)

    with tables.opened(once_before(step, tables, mark)) as pipeline:
        (result,) = pipeline.slice_runs().apply([ORDERS])
        assert isinstance(result.error, TableStale | SnapshotError)
        row = pipeline.store.tables.table(ORDERS)
    assert (row.state, row.state_reason) == (TableState.STALE, REASON)


def test_a_table_that_cannot_be_begun_pauses_as_a_problem_and_begins_when_it_can(tables: ExportedTables) -> None:
    def refuse(_: Pipeline) -> None:
        raise LakeError("the folder belongs to another pipeline")

    with tables.opened(once_before("lake_table.create", tables, refuse)) as pipeline:
        runs, lag = pipeline.slice_runs(), partial(pipeline.store.inspection.run, "lag")
        with pytest.raises(LakeError):
            runs.run(ORDERS)
        assert "it failed 1 times in a row since" in str(lag()[0]["reason"])
        run_sql(tables.store_url, "UPDATE cdc.failing_table SET next_try_at = next_try_at + interval '1 hour'")
        assert "orders pauses, its next try comes at" in runs.run(ORDERS)["ended"]
        assert runs.run(ORDERS, by_hand=True)["claims"] == 1
        assert (lag()[0]["state"], lag()[0]["reason"]) == (TableState.LIVE, None)
