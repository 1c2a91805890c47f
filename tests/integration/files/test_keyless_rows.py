"""Rows of change files without an id: the lake has as many copies as the files, however their claims are cut."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.steps import OnStep
from cdc_pipeline.wiring import utc_now
from tests.support.case_pipeline import apply
from tests.support.delta_rows import seen
from tests.support.event_files import EventFolder, Row
from tests.support.memory_lake import MemoryLake

TABLE = {"name": "public.t", "columns": {"id": "int", "v": "text"}}
SOURCE = {
    "kind": "change_files",
    "format": "upserts",
    "folder": "{table}",
    "list_every": "1s",
    "operation_column": "op",
    "order_by": ["seq"],
}


def insert(v: str, seq: int) -> Row:
    return {"op": "insert", "id": 1, "v": v, "seq": seq}


def delete(v: str, seq: int) -> Row:
    return {"op": "delete", "id": 1, "v": v, "seq": seq}


def update(old: str, new: str, seq: int) -> Row:
    return {"op": "update", "id": 1, "v": new, "BI_id": 1, "BI_v": old, "seq": seq}


LOGS: dict[str, tuple[list[list[Row]], str]] = {
    "one row in two files": ([[insert("a", 2)], [insert("a", 2)]], "aa"),
    "equal rows with another one between them": ([[insert("a", 2), insert("b", 2), insert("a", 2)]], "aab"),
    "equal deletes": ([[insert("a", 1)] * 3, [delete("a", 2)], [delete("a", 2)]], "a"),
    "equal updates": ([[insert("a", 1)] * 3, [update("a", "b", 2)], [update("a", "b", 2)]], "abb"),
    "deletes that come first": ([[delete("a", 2)] * 2, [insert("a", 1)] * 2, [insert("a", 1)]], "a"),
}


def told(events: EventFolder, files: Sequence[Sequence[Row]], *, every: int) -> list[str]:
    """What the lake shows after claims of `every` files."""
    with events.opened(make_lake=make_lake) as pipeline:
        for number, rows in enumerate(files, start=1):
            events.write(f"t/{number}.jsonl", *rows)
            if number % every == 0:
                pipeline.source_setup().set_up()
                pipeline.consumer_runs().consume_until_idle()
                apply(pipeline, pipeline.table_names())
        (table,) = pipeline.table_names()
        assert isinstance(pipeline.lake, MemoryLake)
        return sorted(row["v"] for row in seen(pipeline.lake.rows(pipeline.lake_table(table))))


def make_lake(objects: ObjectStore, on_step: OnStep) -> MemoryLake:
    return MemoryLake(store=objects, clock=utc_now, on_step=on_step)


@pytest.mark.parametrize("at_once", [False, True], ids=["file by file", "at once"])
@pytest.mark.parametrize(("files", "copies"), LOGS.values(), ids=LOGS)
def test_every_row_of_every_file_counts_once(
    files: list[list[Row]], copies: str, *, at_once: bool, tmp_path: Path, database: str
) -> None:
    events = EventFolder(folder=tmp_path, store_url=database, tables=(TABLE,), source=SOURCE)
    assert told(events, files, every=len(files) if at_once else 1) == list(copies)
