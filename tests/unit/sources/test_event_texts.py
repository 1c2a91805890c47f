"""An event that is kept as texts comes back as the event that it was, to the last byte."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.record import ABSENT, OWN_PREFIX, VERSION, Column, TableSchema, encode_version
from cdc_pipeline.sources.event_texts import (
    EventTexts,
    events_of,
    payload,
    payload_columns,
    shown,
    snapshot_row_payload,
    typed_rows,
)

SCHEMA = TableSchema(
    columns=(Column(name="id", type="int4"), Column(name="note", type="text"), Column(name="at", type="date")),
    key=("id",),
)
MOMENTS = st.integers(0, 10**15).map(lambda number: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=number))
OCTETS = st.none() | st.text().map(str.encode) | st.binary()
EVENTS = st.lists(
    st.tuples(
        st.sampled_from("iudm"),
        MOMENTS,
        st.none() | st.integers(0, 2**32),
        st.sampled_from([None, ["note"], ["note", "at"]]),
        st.none() | st.integers(0, 9).map(lambda number: str(number).encode()),
        OCTETS,
        OCTETS,
    ),
    min_size=1,
    max_size=5,
)
VERSIONS = [encode_version(7, ordinal) for ordinal in range(1, 9)]


def texts_of(events: list[tuple[object, ...]]) -> EventTexts:
    operation, moment, transaction, absent, id_, note, at = zip(*events, strict=True)
    return EventTexts(
        operation=pa.array(operation),
        version=pa.array(VERSIONS[: len(events)]),
        commit_time=pa.array(moment, pa.timestamp("us", "UTC")),
        transaction=pa.array(transaction, pa.int64()),
        absent=pa.array(absent, pa.list_(pa.string())),
        old_id={"id": pa.array(id_, pa.binary())},
        texts={"id": pa.array(id_, pa.binary()), "note": pa.array(note, pa.binary()), "at": pa.array(at, pa.binary())},
    )


@given(EVENTS)
def test_a_payload_survives_json_and_gives_the_same_event(events: list[tuple[object, ...]]) -> None:
    before = texts_of(events)
    payloads = [json.loads(json.dumps(payload(before, row))) for row in range(len(events))]
    assert {payload_columns(each) for each in payloads} == {SCHEMA.names}
    after = events_of(payloads, VERSIONS[: len(events)], SCHEMA)
    rows, misfits = typed_rows(before, SCHEMA)
    again, misfits_again = typed_rows(after, SCHEMA)
    assert again.equals(rows)
    assert misfits_again == misfits
    assert all(shown(text).encode() for each in payloads for text in each.values() if text)


def test_a_row_of_a_copy_is_an_insert_at_the_cutoff() -> None:
    kept = snapshot_row_payload({"id": b"1", "note": b"\xff", "at": None}, datetime(2024, 1, 1, tzinfo=UTC))
    rows, (misfit,) = typed_rows(events_of([kept], [encode_version(7, 0)], SCHEMA), SCHEMA)
    assert (misfit.column, shown(kept["note"] or "")) == ("note", "\\xff")
    (row,) = rows.to_pylist()
    own = {name: value for name, value in row.items() if name.startswith(OWN_PREFIX)}
    assert (own[VERSION], own[ABSENT], row["id"]) == (encode_version(7, 0), None, 1)
