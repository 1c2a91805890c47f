"""Debezium's events of a table without an id, in any order: equal rows count, a line that is sent again does not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.steps import OnStep
from cdc_pipeline.wiring import utc_now
from tests.support.case_pipeline import apply
from tests.support.decoding import postgres
from tests.support.delta_rows import seen
from tests.support.event_files import EventFolder
from tests.support.memory_lake import MemoryLake
from tests.support.pipelines import set_up_and_consume

Lines = Sequence[dict[str, Any]]
TABLE = {"name": "public.orders", "columns": {"a": "float8"}}
BY_LSN = {"ordered": False, "sequence_by": ["source.lsn"]}


def insert(a: Any, lsn: int, order: int | None = None) -> dict[str, Any]:
    return postgres("c", lsn, after={"a": a}, order=order)


def delete(a: Any, lsn: int) -> dict[str, Any]:
    return postgres("d", lsn, before={"a": a})


def read(a: Any, *, microsecond: int) -> dict[str, Any]:
    """A row of Debezium's snapshot."""
    event = postgres("r", 100, after={"a": a})
    moment = 1_700_000_000_000_000 + microsecond
    times = {"ts_ms": moment // 1000, "ts_us": moment, "ts_ns": moment * 1000}
    return event | times | {"source": event["source"] | {"snapshot": "true"}}


COPIED = [insert(1, 100, order) for order in (1, 2, 3)]
READ = [read(1, microsecond=number) for number in range(3)]
STORIES: dict[str, tuple[list[Lines], list[float]]] = {
    "rows of one COPY, with transaction metadata": ([COPIED], [1, 1, 1]),
    "one of them deleted": ([COPIED, [delete(1, 200)]], [1, 1]),
    "rows of a snapshot": ([READ], [1, 1, 1]),
    "two of them deleted": ([READ, [delete(1, 200), delete(1, 300)]], [1]),
    "rows of a snapshot, sent again": ([[*READ, *READ]], [1, 1, 1]),
    "rows of one COPY, sent again": ([[*COPIED, *COPIED]], [1, 1, 1]),
    "lines without transaction metadata, sent again": ([[insert(1, 100), insert(2, 110)] * 2], [1, 2]),
}


def rows_after(files: Sequence[Lines], folder: Path, store_url: str, source: dict[str, Any]) -> list[Any]:
    """What the lake shows after one claim per file."""
    events = EventFolder(folder=folder, store_url=store_url, tables=(TABLE,), source=source)
    for number, lines in enumerate(files):
        events.write(f"0/{number}.jsonl", *lines)
        with events.opened(make_lake=make_lake) as pipeline:
            set_up_and_consume(pipeline)
            apply(pipeline, pipeline.table_names())
            (table,) = pipeline.table_names()
            assert isinstance(pipeline.lake, MemoryLake)
            rows = seen(pipeline.lake.rows(pipeline.lake_table(table)))
    return sorted(row["a"] for row in rows)


def make_lake(objects: ObjectStore, on_step: OnStep) -> MemoryLake:
    return MemoryLake(store=objects, clock=utc_now, on_step=on_step)


@pytest.mark.parametrize(("files", "expected"), STORIES.values(), ids=STORIES)
def test_equal_rows_of_one_place_count_and_lines_that_are_sent_again_do_not(
    files: list[Lines], expected: list[float], tmp_path: Path, database: str
) -> None:
    assert rows_after(files, tmp_path, database, BY_LSN) == expected


def test_a_row_with_a_number_that_is_none_is_found_by_its_old_row(tmp_path: Path, database: str) -> None:
    files = [[insert("NaN", 100), insert(-0.0, 110), insert(0.0, 120)], [delete("NaN", 200), delete(-0.0, 210)]]
    assert rows_after(files, tmp_path, database, {"ordered": True}) == [0.0]
