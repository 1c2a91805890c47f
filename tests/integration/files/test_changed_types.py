"""The columns with which a table began: neither pipeline.yml nor events change them behind the lake's back."""

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


def test_a_row_without_an_id_waits_if_it_does_not_show_a_column_that_was_dropped(tmp_path: Path, database: str) -> None:
    """Without its old value the lake's row cannot be found, and would stay for ever."""
    bag = EventFolder(folder=tmp_path, store_url=database, tables=({"name": "public.t"},))
    bag.write(
        "0/a.jsonl",
        with_schema(["id", "n"], create(1, 1)),
        with_schema(["id"], create(2, 2) | {"after": {"id": 2}}),
        with_schema(["id"], create(3, 1) | {"op": "d", "before": {"id": 1}, "after": None}),
    )
    bag.consume()
    assert bag.rows("public.t") == [{"id": 1, "n": 1}, {"id": 2, "n": None}]
    (waiting,) = bag.quarantined()
    assert "came without the column n that earlier events had" in waiting["reason"]


@pytest.mark.parametrize("types", [("int32", "int64"), ("int64", "int32")])
def test_slices_that_were_cut_before_and_after_a_type_grew_are_applied_together(
    tmp_path: Path, database: str, types: tuple[str, str]
) -> None:
    """The lake begins with the newest columns that are registered, also if the first slice has others."""
    first, then = types
    bag = EventFolder(folder=tmp_path, store_url=database, tables=({"name": "public.t"},))
    bag.write(
        "0/a.jsonl",
        with_schema(["id", "n"], create(1, 1), first),
        with_schema(["id", "n"], create(2, 2), then),
        with_schema(["id", "n"], create(3, 3), first),
    )
    bag.consume()
    assert bag.rows("public.t") == [{"id": 1, "n": 1}, {"id": 2, "n": 2}, {"id": 3, "n": 3}]


def test_a_type_that_the_lake_cannot_follow_is_quarantined_and_other_events_go_on(
    tmp_path: Path, database: str
) -> None:
    bag = EventFolder(folder=tmp_path, store_url=database, tables=({"name": "public.t"},))
    bag.write(
        "0/a.jsonl",
        with_schema(["id", "n"], create(1, 1)),
        with_schema(["id", "n"], create(2, 2), "string"),
        with_schema(["id", "n"], create(3, 3)),
    )
    bag.consume()
    assert bag.rows("public.t") == [{"id": 1, "n": 1}, {"id": 3, "n": 3}]
    (waiting,) = bag.quarantined()
    assert "the column id of shop.public.t was int4, and an event has it as text" in waiting["reason"]


@pytest.mark.parametrize(("name", "why"), [("N", "not in the table"), ("id", "in its id")])
def test_a_column_that_is_to_stay_out_and_is_none_of_the_events_is_refused(
    tmp_path: Path, database: str, name: str, why: str
) -> None:
    table = {"name": "public.t", "exclude_columns": [name]}
    bag = EventFolder(folder=tmp_path, store_url=database, tables=(table,))
    event = with_schema(["id", "n"], create(1, 1))
    bag.write("0/a.jsonl", {"key": {"id": 1}, "value": event})
    bag.consume()
    (waiting,) = bag.quarantined()
    assert f"exclude_columns of shop.public.t names {name!r}, which is {why}" in waiting["reason"]


def with_schema(columns: list[str], envelope: Row, type_: str = "int32") -> Row:
    fields = [{"field": name, "type": type_} for name in columns]
    parts = [{"type": "struct", "field": part, "fields": fields} for part in ("before", "after")]
    return {"schema": {"type": "struct", "fields": parts}, "payload": envelope}
