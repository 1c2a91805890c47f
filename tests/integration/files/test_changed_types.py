"""The types with which a table began: pipeline.yml cannot change them behind the lake's back."""

from dataclasses import replace
from pathlib import Path

import pytest

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.record import TableName
from tests.support.event_files import EventFolder, Row, slices_of

NARROW = {"name": "public.t", "columns": {"id": "int", "n": "int"}, "id": ["id"]}
WIDE = {**NARROW, "columns": {"id": "int", "n": "bigint"}}
NAME = TableName.parse("shop.public.t")


@pytest.fixture
def events(tmp_path: Path, database: str) -> EventFolder:
    folder = EventFolder(folder=tmp_path, store_url=database, tables=(NARROW,))
    folder.write("0/a.jsonl", create(1, 1), create(2, 3_000_000_000))
    folder.consume()
    return folder


def create(id_: int, number: int) -> Row:
    source = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "t", "txId": id_}
    return {"op": "c", "before": None, "after": {"id": id_, "n": number}, "source": source | {"ts_ms": 1_700_000_000}}


def test_another_type_in_the_settings_is_refused_before_anything_is_registered(events: EventFolder) -> None:
    events.write("0/a.jsonl", create(3, 3))
    with pytest.raises(SettingsError, match=r"n as int8 in pipeline\.yml; expected int4, as it began"):
        replace(events, tables=(WIDE,)).consume()
    with events.opened() as pipeline:
        assert [row.rows for row in slices_of(pipeline, NAME)] == [1]
    events.consume()
    assert [row["id"] for row in events.rows("public.t")] == [1, 3]


def test_an_event_that_would_need_another_type_waits_on_and_says_so(events: EventFolder) -> None:
    with replace(events, tables=(WIDE,)).opened() as pipeline:
        (outcome,) = pipeline.replay().run(pipeline.store.quarantine.entries())
        assert len(slices_of(pipeline, NAME)) == 1
    assert outcome.state is QuarantineState.WAITING
    assert outcome.why == "n is int8 now and int4 in the lake, which keeps its types"
