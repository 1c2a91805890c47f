"""The columns with which a table began: neither pipeline.yml nor events change them behind the lake's back."""

from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.record import TableName
from tests.integration.files.test_keyless_events import make_lake
from tests.support.case_pipeline import apply
from tests.support.delta_rows import seen
from tests.support.event_files import EventFolder, Row, slices_of
from tests.support.memory_lake import MemoryLake
from tests.support.pipelines import set_up_and_consume

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


@pytest.mark.parametrize("type_", ["int8", "text"])
def test_an_event_that_would_need_another_type_waits_on_and_says_so(events: EventFolder, type_: str) -> None:
    changed = WIDE | {"columns": {"id": "int4", "n": type_}}
    with replace(events, tables=(changed,)).opened() as pipeline:
        (outcome,) = pipeline.replay().run(pipeline.store.quarantine.entries())
        assert len(slices_of(pipeline, NAME)) == 1
    assert outcome.state is QuarantineState.WAITING
    assert outcome.why == f"n is {type_} now and int4 in the lake, which keeps its types"


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


def decimal(digits: int, scale: int) -> Row:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(digits)}
    return {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": parameters}


def in_lake(bag: EventFolder) -> list[str]:
    """What the table of the lake has in n, after everything that waits was consumed and applied."""
    with bag.opened(make_lake=make_lake) as pipeline:
        set_up_and_consume(pipeline)
        apply(pipeline, [NAME])
        assert isinstance(pipeline.lake, MemoryLake)
        return sorted(str(row["n"]) for row in seen(pipeline.lake.rows(pipeline.lake_table(NAME))))


@pytest.mark.parametrize("narrower", [[(12, 2), (10, 2)], [(10, 2), (12, 2), (10, 2)]])
@pytest.mark.parametrize("cut", [True, False])
def test_a_type_is_compared_with_the_widest_one_that_the_column_had(
    tmp_path: Path, database: str, narrower: list[tuple[int, int]], *, cut: bool
) -> None:
    """The lake keeps that type, so a type that fits a narrower one alone would stop the table for good."""
    table = {"name": "public.t", "id": ["id"]}
    bag = EventFolder(folder=tmp_path, store_url=database, tables=(table,))
    expected = []
    for number, (digits, scale) in enumerate([*narrower, (11, 3), narrower[0]]):
        row = {"id": number, "n": b64encode(((100 + number) * 10 ** (scale - 2)).to_bytes(2)).decode()}
        fields = {"id": {"type": "int32"}, "n": decimal(digits, scale)}
        bag.write("0/a.jsonl", with_fields(fields, create(number, 0) | {"after": row}))
        expected += [f"1.0{number}"] if scale == 2 else []
        if cut:
            assert in_lake(bag) == expected
    assert in_lake(bag) == expected
    (waiting,) = bag.quarantined()
    assert "the column n of shop.public.t was numeric(12,2), and an event has it as numeric(11,3)" in waiting["reason"]

    declared = replace(bag, tables=({**table, "columns": {"n": "numeric(12,2)"}},))
    with declared.set_up() as pipeline:
        (outcome,) = pipeline.replay().run(pipeline.store.quarantine.entries())
    assert (outcome.state, outcome.why) == (QuarantineState.REPLAYED, "")
    assert in_lake(declared) == sorted([*expected, f"1.0{len(narrower)}"])


def test_a_declared_column_that_was_taken_out_comes_back_with_its_type_alone(tmp_path: Path, database: str) -> None:
    only_id = {**NARROW, "columns": {"id": "int"}}
    bag = EventFolder(folder=tmp_path, store_url=database, tables=(NARROW,))
    for number, table in enumerate([NARROW, only_id]):
        bag.write("0/a.jsonl", create(number, number))
        in_lake(replace(bag, tables=(table,)))
    with pytest.raises(SettingsError, match=r"n as text in pipeline\.yml; expected int4, as it began"):
        replace(bag, tables=({**NARROW, "columns": {"id": "int", "n": "text"}},)).consume()
    bag.write("0/a.jsonl", create(2, 2))
    assert in_lake(bag) == ["0", "2", "None"]


def with_fields(columns: dict[str, Row], envelope: Row) -> Row:
    fields = [{"field": name, **described} for name, described in columns.items()]
    parts = [{"type": "struct", "field": part, "fields": fields} for part in ("before", "after")]
    return {"schema": {"type": "struct", "fields": parts}, "payload": envelope}


def with_schema(columns: list[str], envelope: Row, type_: str = "int32") -> Row:
    return with_fields({name: {"type": type_} for name in columns}, envelope)
