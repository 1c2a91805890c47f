"""Settings that the lake's files depend on: a change in pipeline.yml has no effect before it is registered."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.errors import RegistryError
from tests.crash.world import make_lake, memory_lake
from tests.integration.files.test_lost_store import NAME, TABLE, create
from tests.support.case_pipeline import apply
from tests.support.event_files import EventFolder
from tests.support.streams import run_sql

SOFT = {**TABLE, "deletes": "soft"}
BY_NOTE = {**TABLE, "partition_by": [{"column": "note"}]}


def deleted(id_: int, at: int) -> dict[str, Any]:
    gone = create(at)
    return gone | {"op": "d", "before": {"id": id_, "note": "n"}, "after": None}


def applied(events: EventFolder) -> None:
    with events.opened(make_lake) as pipeline:
        apply(pipeline, pipeline.table_names())


def test_rows_that_were_kept_when_they_were_deleted_stay_until_hard_deletes_are_registered(
    database: str, tmp_path: Path
) -> None:
    events = EventFolder(folder=tmp_path, store_url=database, tables=(SOFT,))
    events.write("0/a.jsonl", create(1), create(2), deleted(1, 3))
    events.consume()
    applied(events)
    events.write("0/b.jsonl", deleted(2, 4), create(5))
    events.consume()
    hard = replace(events, tables=(TABLE,))
    applied(hard)
    with hard.opened(make_lake) as pipeline:
        (report,) = pipeline.maintenance().maintain_each((NAME,))
        assert report.ended == "done"
        table = pipeline.lake_table(NAME)
        found = {row["id"]: row["_cdc_deleted"] for row in memory_lake(pipeline).rows(table)}
    assert found == {1: True, 2: True, 5: False}
    with pytest.raises(RegistryError, match=r"settings of .* changed in deletes"):
        hard.consume()


def test_a_lake_begins_empty_with_the_settings_that_are_registered(database: str, tmp_path: Path) -> None:
    events = EventFolder(folder=tmp_path, store_url=database, tables=(TABLE,))
    events.write("0/a.jsonl", create(1))
    events.consume()
    changed = replace(events, tables=(BY_NOTE,))
    with changed.opened(make_lake) as pipeline:
        assert pipeline.lake_table(NAME).partition_by == ()
        apply(pipeline, pipeline.table_names())
        registered = pipeline.store.tables.table(NAME).settings
        assert registered["partition_by"] == []
    with pytest.raises(RegistryError, match=r"settings of .* changed in partition_by"):
        changed.consume()
    events.consume()
    assert [row["id"] for row in events.rows("public.t")] == [1]


def test_a_store_from_before_a_change_takes_the_settings_that_the_lake_shows(database: str, tmp_path: Path) -> None:
    events = EventFolder(folder=tmp_path, store_url=database, tables=(SOFT,))
    events.write("0/a.jsonl", create(1), create(2), deleted(1, 3))
    events.consume()
    applied(events)
    run_sql(database, """UPDATE cdc.source_table SET settings = settings || '{"deletes": "hard"}'""")
    with events.opened(make_lake) as pipeline:
        (report,) = pipeline.maintenance().maintain_each((NAME,))
        assert report.ended == "done"
        assert [row["id"] for row in memory_lake(pipeline).rows(pipeline.lake_table(NAME))] == [1, 2]
        assert pipeline.lake_table(NAME).deletes == "hard"
        pipeline.rebuild().run()
        assert pipeline.lake_table(NAME).deletes == "soft"
    events.consume()
