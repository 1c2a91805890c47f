"""Quarantined lines that were sent again, in a topic of several partitions, delete nothing that is newer."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.debezium.events_alone import EventsAlone
from cdc_pipeline.sources.debezium.versions import encode_place
from cdc_pipeline.sources.known import KnownTable
from cdc_pipeline.sources.protocol import UnfitEvent
from tests.support.decoding import ORDERS, Decoding, Json, KeptText, orders, postgres

TABLE = orders(id=("id",), columns={"id": "int8", "n": "int4"})
WITHOUT_COLUMNS = orders(id=("id",))
OLD_KEY: Json = {"__debezium.oldkey": json.dumps({"id": 1})}
MOVED, TRUNCATE = postgres("c", 50, after={"id": 2, "n": "x"}), postgres("t", 50)
LATER = postgres("c", 100, after={"id": 3, "n": 1})


def at(lsn: int, place: int) -> str:
    return encode_place((lsn - 5) << 64 | lsn, place)


def sent_again(event: Json, second: TableSettings, *, before: Sequence[Json] = ()) -> UnfitEvent:
    """Sends an event and a later one, then the event again to a consumer that quarantines it. Returns that line."""
    first = Decoding(TABLE, partitions=2)
    first.send(event, headers=OLD_KEY)
    first.send(LATER, headers={})
    reader = Decoding(second, partitions=2, registered=first.registered)
    lines = [reader.record(each, headers={"__debezium.newkey": json.dumps({"id": 2})}) for each in before]
    reader.send_lines([*lines, reader.record(event, headers=OLD_KEY)])
    return [unfit for events in reader.events for unfit in events.unfit][-1]


def replayed(line: UnfitEvent, horizon: str = "", *, is_corrected: bool = True) -> list[tuple[str, str]]:
    """Returns operation and version of each row, once the value is corrected or without that."""
    corrected = "7" if is_corrected else '\\"x\\"'
    payload = {name: str(text).replace('\\"x\\"', corrected) for name, text in line.payload.items()}
    entry = KeptText(quarantine_id=1, event=replace(line, payload=payload))
    known = KnownTable(name=ORDERS, source_id=0, key=("id",), published_as="", schema=None, horizon=horizon)
    source = EventsAlone(stream="shop", kind="kafka", tables=(TABLE,))
    (decoded,) = source.decode_quarantined(known, [entry], columns=(), stream_partitions=range(2))
    assert (decoded.fitting, [*decoded.refused]) == (([1], []) if is_corrected else ([], [1]))
    return [(row["_cdc_op"], row["_cdc_version"]) for row in decoded.rows.to_pylist()]


@pytest.mark.parametrize("second", [TABLE, WITHOUT_COLUMNS], ids=["an unfit value", "a refused table"])
def test_a_key_change_deletes_its_old_row_at_its_own_place_in_the_log(second: TableSettings) -> None:
    """The id may have been given to a newer row, in another stream partition."""
    line = sent_again(MOVED, second)
    assert replayed(line) == [("d", at(50, 0)), ("m", at(100, 0))]
    assert replayed(line, horizon=at(50, 0)) == [("d", at(50, 0)), ("m", at(100, 0))]
    assert replayed(line, horizon=at(60, 0)) == [("m", at(100, 0))]


def test_a_refused_key_change_without_its_own_place_deletes_nothing() -> None:
    """Earlier versions kept no place. The stream had deleted the old row, and its id may be a newer row's by now."""
    line = sent_again(MOVED, TABLE)
    assert replayed(line, is_corrected=False) == [("d", at(50, 0))]
    without = replace(line, payload={name: text for name, text in line.payload.items() if name != "_cdc_deletes_at"})
    assert without != line
    assert replayed(without, is_corrected=False) == []


def test_a_truncate_empties_the_table_as_of_its_own_place_in_the_log() -> None:
    line = sent_again(TRUNCATE, WITHOUT_COLUMNS)
    assert replayed(line) == [("t", at(50, 0))]
    assert replayed(line, horizon=at(60, 0)) == []


@pytest.mark.parametrize("second", [TABLE, WITHOUT_COLUMNS], ids=["an unfit value", "a refused table"])
def test_the_order_of_the_lines_decides_if_the_old_row_is_in_the_same_stream_partition(second: TableSettings) -> None:
    """It may have been sent again there, with a version above its place in the log."""
    line = sent_again(MOVED, second, before=[postgres("d", 50, before={"id": 1, "n": None})])
    assert replayed(line) == [("d", at(100, 1)), ("m", at(100, 1))]


def test_a_key_change_whose_old_id_does_not_fit_keeps_the_version_of_its_line() -> None:
    reader = Decoding(TABLE, partitions=2)
    reader.send(LATER, headers={})
    reader.send(postgres("c", 50, after={"id": 2, "n": 1}), headers={"__debezium.oldkey": '{"id": "x"}'})
    (line,) = [unfit for events in reader.events for unfit in events.unfit]
    assert (line.version, line.payload["_cdc_deletes_at"]) == (at(100, 1), at(50, 1))
