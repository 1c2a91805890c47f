"""What a folder of events left is deleted when it is old; the store that is rebuilt reads on everywhere."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.record import TableName
from tests.crash.world import make_lake, memory_lake
from tests.support.command_line import query
from tests.support.event_files import EventFolder
from tests.support.ledgers import forget_store, ledger_of

TABLE = {"name": "public.t", "columns": {"id": "int", "note": "text"}, "id": ["id"]}
NAME = TableName.parse("shop.public.t")
STATES = "SELECT table_name, state, state_reason, followed_at FROM cdc.source_table ORDER BY table_name"


def create(id_: int, table: str = "t") -> dict[str, Any]:
    place = {"db": "shop", "schema": "public", "table": table, "lsn": id_, "txId": id_}
    return {"op": "c", "before": None, "after": {"id": id_, "note": "n"}, "source": place, "ts_ms": 1_000 * id_}


def go_on(events: EventFolder, name: TableName = NAME) -> list[int]:
    """The table's ids in the lake, once everything is read and applied."""
    events.consume()
    with events.opened(make_lake) as pipeline:
        results = pipeline.slice_runs().apply(pipeline.table_names())
        assert [result.error for result in results if result.error is not None] == []
        return sorted(row["id"] for row in memory_lake(pipeline).rows(pipeline.lake_table(name)))


def test_two_folders_of_files_go_on_behind_the_base_where_each_was_read_to(database: str, tmp_path: Path) -> None:
    events = EventFolder(folder=tmp_path, store_url=database, tables=(TABLE,))
    events.write("0/a.jsonl", create(1), create(2))
    events.write("1/x.jsonl", create(3))
    go_on(events)
    events.write("0/b.jsonl", create(4))
    go_on(events)
    events.write("0/b.jsonl", create(5))
    events.write("1/x.jsonl", create(6))
    assert go_on(events) == [1, 2, 3, 4, 5, 6]
    with events.opened(make_lake) as pipeline:
        found = {
            each.kind: each.count
            for each in pipeline.cleanup().clean(now=pipeline.store.snapshot_history.now() + timedelta(8)).kinds
        }
    assert min(found["slice files"], found["cut files"], found["rows of slice"]) > 0
    before = ledger_of(database)
    forget_store(database)
    with events.opened(make_lake) as pipeline:
        pipeline.rebuild().run()
    after = ledger_of(database)
    for name in ("stream_partition", "source_file", "boundary", "slice", "table_schema"):
        assert after[name] == before[name], name
    events.write("0/c.jsonl", create(7))
    events.write("1/x.jsonl", create(8))
    assert go_on(events) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "kept"])
def test_a_table_that_was_added_behind_the_base_stays_live(database: str, tmp_path: Path, *, is_lost: bool) -> None:
    """A cut lies between the base and the first one that names the table: it had nothing to read there."""
    events = EventFolder(folder=tmp_path, store_url=database, tables=(TABLE,))
    for id_ in (1, 2):
        events.write("0/a.jsonl", create(id_))
        go_on(events)
    with events.opened() as pipeline:
        moment = pipeline.store.snapshot_history.now()
    events.write("0/a.jsonl", create(3))
    go_on(events)
    events = replace(events, tables=(TABLE, {**TABLE, "name": "public.u"}))
    events.write("0/a.jsonl", create(4), create(5, "u"))
    added = TableName.parse("shop.public.u")
    assert go_on(events, added) == [5]
    with events.opened(make_lake) as pipeline:
        found = {each.kind: each.count for each in pipeline.cleanup().clean(now=moment + timedelta(7)).kinds}
    assert found["cut files"] > 0
    before = query(database, STATES)
    if is_lost:
        forget_store(database)
    with events.opened(make_lake) as pipeline:
        pipeline.rebuild().run()
    assert query(database, STATES) == before
    events.write("0/a.jsonl", create(6, "u"))
    assert go_on(events, added) == [5, 6]


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "kept"])
def test_a_table_that_is_listed_again_after_its_lake_is_removed_begins_anew(
    database: str, tmp_path: Path, *, is_lost: bool
) -> None:
    """The cut files that name the old one stay, and the slices that they name are deleted."""
    both = EventFolder(folder=tmp_path, store_url=database, tables=(TABLE, {**TABLE, "name": "public.u"}))
    both.write("0/a.jsonl", create(1), create(2, "u"))
    again = TableName.parse("shop.public.u")
    assert go_on(both, again) == [2]
    with replace(both, tables=(TABLE,)).opened(make_lake) as pipeline:
        pipeline.removal().remove_table(again, with_lake=True)
    with both.opened(make_lake) as pipeline:
        pipeline.source_setup().set_up()
    if is_lost:
        forget_store(database)
    with both.opened(make_lake) as pipeline:
        pipeline.rebuild().run()
    both.write("0/a.jsonl", create(3), create(4, "u"))
    assert go_on(both, again) == [4]
    assert go_on(both) == [1, 3]
