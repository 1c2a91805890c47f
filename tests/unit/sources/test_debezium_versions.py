"""Versions of Debezium's events: texts that order like what they stand for."""

import json
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, read_line
from cdc_pipeline.sources.debezium.versions import (
    DELETE_RANK,
    UPSERT_RANK,
    Unordered,
    encode_place,
    is_exact,
    sequence,
    sequence_version,
    source_position,
    truncate_version,
    written_sequence,
)

NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30),
    st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**9), max_value=10**9),
)
BY_LSN = ("source.lsn",)


def event(source: dict[str, Any], op: str = "c") -> EnvelopeEvent:
    found = read_line(json.dumps({"op": op, "before": None, "after": {}, "source": source}).encode())
    assert isinstance(found, EnvelopeEvent)
    return found


def version(lsn: int, *, rank: int = UPSERT_RANK, content: object = None) -> str:
    return sequence_version(event({"lsn": lsn}), BY_LSN, rank=rank, content=[content])


@given(NUMBERS, NUMBERS)
def test_numbers_are_compared_as_numbers_and_so_are_texts_of_numbers(one: Decimal | int, other: Decimal | int) -> None:
    texts = [sequence({"n": number}, ["n"]) for number in (one, other)]
    assert (texts[0] < texts[1]) == (one < other)
    assert (texts[0] == texts[1]) == (one == other)
    assert [sequence({"n": format(Decimal(number), "f")}, ["n"]) for number in (one, other)] == texts


@given(st.tuples(NUMBERS, st.text()), st.tuples(NUMBERS, st.text()))
def test_a_tuple_is_compared_field_by_field(one: tuple[Any, str], other: tuple[Any, str]) -> None:
    pairs = [(number, "x" + text) for number, text in (one, other)]
    texts = [sequence({"n": number, "deep": {"t": text}}, ["n", "deep.t"]) for number, text in pairs]
    assert (texts[0] < texts[1]) == (pairs[0] < pairs[1])


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        ("mysql-bin.000999", "mysql-bin.001000"),
        ("mysql-bin.999999", "mysql-bin.1000000"),
        ("bin.000009", "other.000010"),
        ('["9","100"]', '["10","2"]'),
        ('["28330000","28330001"]', '[null,"28330272"]'),
        (9, "10"),
        (Decimal("-1.55"), Decimal("-1.5")),
        (-1, 0),
        (10**40, "text"),
        ("2026-01-01T10:00:00Z", "2026-01-01T10:00:00.500Z"),
        ("2026-01-01T10:00:00.123Z", "2026-01-01T10:00:00.123456789Z"),
        ("2026-01-01T10:00:00+02:00", "2026-01-01T09:00:00Z"),
        ("2026-01-01 10:00:00+02", "2026-01-01T08:00:00.1+0000"),
        ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
    ],
)
def test_log_files_go_by_their_number_and_lists_item_by_item(lower: object, higher: object) -> None:
    assert sequence({"n": lower}, ["n"]) < sequence({"n": higher}, ["n"])


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        ("2026-01-01T10:00:00.900", "2026-01-01T10:00:01.100"),
        ("2026-01-01T10:00:00", "2026-01-01T10:00:01.500000"),
        ("2026-01-01T10:00:00.500000", "2026-01-01T10:00:01"),
        ("2026-01-01T10:00", "2026-01-01T10:00:00.001"),
        ("2026-01-01 10:00:01.900000", "2026-01-01T10:00:02.100"),
        ("2026-01-01T10:00:00.900", "2026-01-01T10:00:01Z"),
        ("2026-01-01", "2026-01-01T10:00:00"),
        ("20260101T100000.900000", "20260101T100001.100000"),
        ("10:00:00.900000", "10:00:01.100000"),
        ("v1.900", "v2.100"),
        ("v1.900000", "v2.100000"),
        ("0/9FFFFFF", "0/10000000"),
        ("0/ff", "0/FF0"),
        ("F/FFFFFFFF", "10/0"),
        ("9e+16", "1e+17"),
        ("9.5E16", "1.0E17"),
        ("-1e+17", "-9e+16"),
        ("1e-05", "0.001"),
        (90_000, "1.0e+5"),
        ("00000D00", "00000E00"),
    ],
)
def test_times_without_a_zone_and_lsns_and_floats_go_by_what_they_mean(lower: object, higher: object) -> None:
    assert sequence({"n": lower}, ["n"]) < sequence({"n": higher}, ["n"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2026-01-01T10:00:00.100", "2026-01-01 10:00:00.100000"),
        ("2026-01-01T10:00", "2026-01-01T10:00:00Z"),
        ("0/FF", "0/000000ff"),
    ],
)
def test_one_moment_or_place_in_two_spellings_is_one(one: str, other: str) -> None:
    assert sequence({"n": one}, ["n"]) == sequence({"n": other}, ["n"])


def test_a_field_of_log_files_goes_by_their_number_whatever_the_server_calls_them() -> None:
    """A name that ends in a digit may be something else anywhere else."""
    assert sequence({"file": "db1.999999"}, ["file"]) < sequence({"file": "db1.1000000"}, ["file"])


@pytest.mark.parametrize("value", [{}, {"source": None}, {"source": {"lsn": None}}, {"source": {"lsn": True}}])
def test_an_event_without_a_usable_field_has_no_version(value: dict[str, Any]) -> None:
    with pytest.raises(Unordered, match=r"has no version: source\.lsn is"):
        sequence(value, BY_LSN)


@given(NUMBERS, st.text(max_size=20).map(lambda text: f"text {text}"))
def test_people_are_shown_the_values_that_a_sequence_encodes(number: Decimal | int, text: str) -> None:
    shown_number, shown_text = written_sequence(sequence({"0": number, "1": text}, ("0", "1"))).split(", ", 1)
    assert (Decimal(shown_number), shown_text) == (number, text)
    assert written_sequence("000000000000000000000000000001f4-0") == "000000000000000000000000000001f4-0"


def test_at_one_sequence_a_truncate_is_above_an_upsert_and_that_above_a_delete() -> None:
    delete, upsert = version(7, rank=DELETE_RANK), version(7)
    assert version(6) < delete < upsert < truncate_version(event({"lsn": 7}, "t"), BY_LSN) < version(8)
    assert version(7, content=1) != version(7, content=2)
    assert version(7, content={"a": 1, "b": 2}) == version(7, content={"b": 2, "a": 1})


def test_a_later_place_wins_where_the_log_stands_still() -> None:
    assert encode_place(5, 9) < encode_place(5, 10) < encode_place(6, 0)


def test_events_of_postgresql_go_by_the_commit_before_them_then_by_their_own_place() -> None:
    """A transaction that wrote first but committed last comes last."""
    first = event({"lsn": 120, "sequence": '["90","120"]'})
    last = event({"lsn": 100, "sequence": '["130","100"]'})
    assert source_position(first) < source_position(last)
    begun = event({"lsn": 200, "sequence": '[null,"200"]'})
    assert source_position(last) < source_position(begun)
    assert source_position(event({"lsn": 5})) == 5 << 64 | 5


def test_events_of_a_numbered_log_go_by_file_position_and_row() -> None:
    places = [("bin.000009", 500, 0), ("bin.000010", 4, 0), ("bin.000010", 4, 1), ("bin.000010", 40, 0)]
    positions = [source_position(event({"file": file, "pos": pos, "row": row})) for file, pos, row in places]
    assert positions == sorted(set(positions))


def test_events_of_another_source_go_by_their_time_and_say_nothing_exact() -> None:
    timed = event({"ts_ms": 1_700_000_000_000})
    assert source_position(timed) == 1_700_000_000_000
    assert source_position(event({})) == 0
    assert not is_exact(timed)
    assert is_exact(event({"lsn": 1, "sequence": '["1","1"]'}))
    assert not is_exact(event({"lsn": 1}))


def test_an_endless_name_of_a_log_takes_no_time_and_tells_no_place() -> None:
    begun = time.process_time()
    assert source_position(event({"file": "z" * 100_000, "pos": 1, "ts_ms": 7})) == 7
    assert source_position(event({"file": "bin." + "9" * 900, "pos": 1, "ts_ms": 7})) == 7
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("shown", ['["90","120"]', '["90",null]', '[null,"120"]'])
def test_a_row_of_an_incremental_snapshot_has_the_place_of_the_change_before_it(shown: str) -> None:
    """PostgreSQL's connector leaves the LSN out of such a row, and `sequence` shows those of the last change."""
    place = {"connector": "postgresql", "snapshot": "incremental", "ts_ms": 1_768_000_000_000, "sequence": shown}
    read = source_position(event({**place, "lsn": None, "txId": None}, op="r"))
    older, newer = ({"lsn": lsn, "sequence": json.dumps([str(lsn - 40), str(lsn)])} for lsn in (80, 200))
    assert source_position(event(older)) < read < source_position(event(newer))
