"""A kept event is read with the columns that it had and the types that they have by now."""

from datetime import UTC, datetime
from typing import Any

import pytest

from cdc_pipeline.metadata_store.ledger.quarantine import QuarantineEntry
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.record import (
    ABSENT,
    COMMIT_TIME,
    OPERATION,
    TRANSACTION,
    VERSION,
    Column,
    TableSchema,
    encode_version,
)
from cdc_pipeline.sources.event_texts import COLUMN_NUMBERS, snapshot_row_payload
from cdc_pipeline.sources.quarantined import decode_texts

NOW = datetime(2024, 1, 1, tzinfo=UTC)
ID, NAME, LATER = Column(name="id", type="int4"), Column(name="name", type="text"), Column(name="later", type="text")
DATE, TEXT = Column(name="at", type="date"), Column(name="at", type="text")


def kept(number: int, *, snapshot_id: str | None = None, **texts: str | None) -> QuarantineEntry:
    octets = {name: None if text is None else text.encode() for name, text in texts.items()}
    return QuarantineEntry(
        quarantine_id=number,
        table_id=1,
        stream_partition=0,
        version=encode_version(7, 0),
        start_offset="",
        end_offset="",
        reason="",
        column="",
        payload=snapshot_row_payload(octets, NOW),
        state=QuarantineState.WAITING,
        created_at=NOW,
        snapshot_id=snapshot_id,
        place="0000000000000001-0",
        slice_number=None,
        decision=None,
        decided_at=None,
    )


def known(*columns: Column) -> tuple[Column, ...]:
    return columns


def test_a_column_that_went_is_still_the_events_and_one_that_came_later_is_not() -> None:
    newest = TableSchema(columns=(ID, DATE, LATER), key=("id",))
    (decoded,) = decode_texts([kept(1, id="1", name="n", at="2024-01-01")], newest, known(ID, NAME, DATE, LATER))
    assert decoded.schema.names == ("id", "name", "at")
    assert (decoded.fitting, decoded.refused, decoded.rows["name"].to_pylist()) == ([1], {}, ["n"])


def test_types_are_those_of_now() -> None:
    entries = [kept(1, id="1", at="infinity"), kept(2, id="2", at="2024-01-01")]
    before, after = TableSchema(columns=(ID, DATE), key=("id",)), TableSchema(columns=(ID, TEXT), key=("id",))
    (decoded,) = decode_texts(entries, before, known(ID, DATE))
    assert (decoded.fitting, list(decoded.refused)) == ([2], [1])
    (decoded,) = decode_texts(entries, after, known(ID, TEXT))
    assert (decoded.fitting, decoded.rows["at"].to_pylist()) == ([1, 2], ["infinity", "2024-01-01"])


def test_events_with_other_columns_are_read_apart() -> None:
    newest = TableSchema(columns=(ID, NAME), key=("id",))
    entries = [kept(1, id="1", name="a"), kept(2, id="2"), kept(3, id="3", name="c")]
    parts = decode_texts(entries, newest, known(ID, NAME))
    assert sorted((part.schema.names, part.fitting) for part in parts) == [(("id",), [2]), (("id", "name"), [1, 3])]


def test_a_column_that_nobody_knows_yet_is_waited_for() -> None:
    newest = TableSchema(columns=(ID,), key=("id",))
    (decoded,) = decode_texts([kept(1, id="1", later="x")], newest, known(ID))
    assert decoded.refused == {1: "the type of later is not known before the table's next event that fits"}


def test_an_id_that_the_event_never_had_is_no_id() -> None:
    newest = TableSchema(columns=(ID, NAME), key=("name",))
    (decoded,) = decode_texts([kept(1, id="1")], newest, known(ID, NAME))
    assert decoded.refused == {1: "the id column name is NULL"}


def test_equal_rows_of_a_keyless_snapshot_differ_at_the_cutoff() -> None:
    bag = TableSchema(columns=(ID,), key=())
    entries = [kept(number, id="1", snapshot_id="first") for number in (1, 2)]
    (decoded,) = decode_texts(entries, bag, known(ID))
    first, second = decoded.rows[VERSION].to_pylist()
    assert encode_version(7, 0) < first < second < encode_version(7, 1)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("name", 1.5, "name of its payload is 1.5; expected a text in quotes"),
        (COMMIT_TIME, "x", '"x"; expected its text as it was: Invalid isoformat'),
        (ABSENT, "nonsense", '"nonsense"; expected'),
        (ABSENT, '"name"', "expected"),
        (TRANSACTION, "one", '"one"; expected'),
        (TRANSACTION, "99999999999999999999", '"99999999999999999999"; expected'),
        (OPERATION, None, "null; expected"),
        (COLUMN_NUMBERS, "[1]", '"[1]"; expected'),
    ],
)
def test_an_event_that_was_corrected_into_no_text_is_refused_alone(field: str, value: Any, said: str) -> None:
    good, bad = kept(1, id="1", name="n"), kept(2, id="2", name="n")
    bad.payload[field] = value
    first, second = decode_texts([good, bad], TableSchema(columns=(ID, NAME), key=("id",)), known(ID, NAME))
    assert (first.fitting, second.fitting, list(second.refused)) == ([1], [], [2])
    assert second.refused[2].startswith(f"{field} of its payload is ")
    assert said in second.refused[2]


@pytest.mark.parametrize("field", [ABSENT, TRANSACTION])
def test_a_field_that_may_be_empty_may_be_gone_after_a_correction(field: str) -> None:
    corrected = kept(1, id="1", name="n")
    del corrected.payload[field]
    (decoded,) = decode_texts([corrected], TableSchema(columns=(ID, NAME), key=("id",)), known(ID, NAME))
    assert (decoded.fitting, decoded.refused) == ([1], {})
