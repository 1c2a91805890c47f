"""What pipeline.yml excludes is left out of events before anything is written."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_pipeline.consume.event_filter import EventFilter
from cdc_pipeline.record import ABSENT, OPERATION, Column, TableName, TableSchema
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.protocol import EventBatch, TableEvents, Transactions, UnfitEvent

NAME = TableName.parse("shop.public.people")
SCHEMA = TableSchema(columns=tuple(Column(name=name, type="text") for name in ("id", "a", "b", "ssn")), key=("id",))
NOTHING = np.zeros(0, np.int64)


def events(
    absent: Sequence[list[str] | None], *, operation: str = "u", unfit: tuple[UnfitEvent, ...] = ()
) -> TableEvents:
    fields = event_schema(SCHEMA)
    rows: list[dict[str, Any]] = [
        {
            **dict.fromkeys(fields.names),
            OPERATION: operation,
            ABSENT: names,
            "id": str(place),
            "a": "a",
            "b": "b",
            "ssn": "secret",
        }
        for place, names in enumerate(absent)
    ]
    places = np.arange(len(absent))
    table = pa.Table.from_pylist(rows, schema=pa.schema([field.with_nullable(nullable=True) for field in fields]))
    return TableEvents(
        table=NAME, schema=SCHEMA, rows=table, commit_position=places, stream_partition=places * 0, unfit=unfit
    )


def kept(found: TableEvents, **settings: Any) -> TableEvents:
    batch = EventBatch(
        events=(found,), transactions=Transactions(commit_position=NOTHING, end_position=NOTHING, commit_time=NOTHING)
    )
    table = TableSettings.model_validate({"name": str(NAME), **settings})
    (only,) = EventFilter(tables={NAME: table}).kept(batch).events
    return only


def test_without_settings_events_stay_as_they_are() -> None:
    found = events([None, ["a"]])
    assert kept(found) is found
    other = EventFilter(tables={})
    batch = EventBatch(
        events=(found,), transactions=Transactions(commit_position=NOTHING, end_position=NOTHING, commit_time=NOTHING)
    )
    assert other.kept(batch).events == (found,)


def test_an_excluded_column_goes_from_rows_and_schema() -> None:
    found = kept(events([None, None]), exclude_columns=["ssn", "not there"])
    assert found.schema.names == ("id", "a", "b")
    assert [name for name in found.rows.column_names if not name.startswith("_cdc_")] == ["id", "a", "b"]
    assert found.rows.schema.names == event_schema(found.schema).names


def test_a_row_is_partial_by_its_other_columns_alone() -> None:
    absent = [None, ["ssn"], ["a", "ssn", "b"], [], ["b"], ["ssn", "gone"]]
    found = kept(events(absent), exclude_columns=["gone", "ssn"])
    assert found.rows[ABSENT].to_pylist() == [None, None, ["a", "b"], None, ["b"], None]


def test_a_part_of_a_larger_table_is_filtered_as_the_part_that_it_is() -> None:
    whole = events([["a"], ["ssn"], ["ssn", "b"], None])
    part = kept(
        TableEvents(
            table=NAME,
            schema=SCHEMA,
            rows=pa.concat_tables([whole.rows.slice(1, 1), whole.rows.slice(2, 2)]),
            commit_position=np.arange(3),
            stream_partition=np.zeros(3, np.int64),
        ),
        exclude_columns=["ssn"],
    )
    assert part.rows[ABSENT].to_pylist() == [None, ["b"], None]
    assert part.rows["id"].to_pylist() == ["1", "2", "3"]


def test_a_quarantined_event_is_kept_without_them() -> None:
    payload = {"id": "9", "a": "x", "ssn": "secret"}
    event = UnfitEvent(stream_partition=0, version="1", commit_position=0, column="a", payload=payload, reason="why")
    (found,) = kept(events([None], unfit=(event,)), exclude_columns=["ssn"]).unfit
    assert found.payload == {"id": "9", "a": "x"}


def test_ignored_truncates_go_and_other_events_stay() -> None:
    assert kept(events([None], operation="t"), truncate="ignore").rows.num_rows == 0
    assert kept(events([None], operation="t")).rows.num_rows == 1
    assert kept(events([None, None]), truncate="ignore").rows.num_rows == 2
