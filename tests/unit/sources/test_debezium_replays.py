"""Quarantined lines of Debezium's events without headers, decoded again, when the lines between them are not known."""

import dataclasses
import json
from typing import Any

import pytest

from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.debezium.events_alone import EventsAlone
from cdc_pipeline.sources.debezium.versions import encode_place
from cdc_pipeline.sources.known import KnownTable
from cdc_pipeline.sources.protocol import UnfitEvent
from cdc_pipeline.sources.quarantined import DecodedEvents
from tests.support.decoding import ORDERS, PLACEHOLDER, Decoding, Json, KeptText, orders, postgres

INSERT = postgres("c", 10, after={"id": 1, "n": 1, "big": "b"})
DELETE = postgres("d", 20, before={"id": 1, "n": None, "big": None})
CREATE = postgres("c", 20, after={"id": 2, "n": 1, "big": PLACEHOLDER})
UPDATE = postgres("u", 30, after={"id": 2, "n": 5, "big": PLACEHOLDER})
SETTINGS: Json = {"id": ("id",), "columns": {"id": "int8", "n": "int4", "big": "text"}}
TABLE = orders(**SETTINGS)


def kept(number: int, event: Json) -> KeptText:
    payload = {"_cdc_line": json.dumps(event), "_cdc_file": "f", "_cdc_line_number": str(number)}
    version = encode_place(event.get("value", event)["source"]["lsn"], number)
    unfit = UnfitEvent(stream_partition=0, version=version, commit_position=0, column="", payload=payload, reason="")
    return KeptText(quarantine_id=number, event=unfit)


def replayed(
    *events: Json, partitions: int = 1, horizon: str = "", table: TableSettings = TABLE
) -> tuple[list[Any], dict[int, str]]:
    """What the quarantined events give: operation, id and the text that may be left out; and which of them wait."""
    known = KnownTable(name=ORDERS, source_id=0, key=("id",), published_as="", schema=None, horizon=horizon)
    source = EventsAlone(stream="shop", kind="debezium_files", tables=(table,))
    entries = [kept(number, event) for number, event in enumerate(events)]
    found = source.decode_quarantined(known, entries, columns=(), stream_partitions=range(partitions))
    rows = [row for decoded in found for row in decoded.rows.to_pylist()]
    refused = {number: why for decoded in found for number, why in decoded.refused.items()}
    assert {*refused, *(number for decoded in found for number in decoded.fitting)} == set(range(len(events)))
    return [(row["_cdc_op"], row["id"], row["big"], row["_cdc_absent"]) for row in rows], refused


MOVED = [("d", 1, None, None), ("m", 2, None, ["big"])]
INSERTED, UPDATED = ("i", 1, "b", None), ("u", 2, None, ["big"])


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_key_change_without_headers_is_one_again(partitions: int) -> None:
    rows, refused = replayed(INSERT, DELETE, CREATE, UPDATE, partitions=partitions)
    assert (rows, refused) == ([INSERTED, *MOVED, UPDATED], {})


def test_a_key_change_whose_lines_were_sent_twice_is_one_again() -> None:
    rows, refused = replayed(INSERT, INSERT, DELETE, DELETE, CREATE, CREATE, UPDATE)
    assert (rows, refused) == ([INSERTED, INSERTED, *MOVED, UPDATED, UPDATED], {})


def test_a_create_alone_brings_no_placeholder() -> None:
    """Its delete was applied before, so what it left out is not known until an update shows it."""
    assert replayed(CREATE) == ([UPDATED], {})


def test_a_delete_is_applied_if_the_create_of_its_key_change_does_not_fit() -> None:
    rows, refused = replayed(DELETE, {**CREATE, "after": {"id": 2, "n": "x", "big": PLACEHOLDER}})
    assert (rows, list(refused)) == ([("d", 1, None, None)], [1])


@pytest.mark.parametrize("events", [1, 2])
def test_the_old_row_is_deleted_if_a_replayed_key_change_does_not_fit(events: int) -> None:
    """Only the source's correction of the new row may follow, and it names the new id alone."""
    after = {"id": 2, "n": "x", "big": "b"}
    changes: list[Json] = [postgres("u", 20, before={"id": 1, "n": 1, "big": "b"}, after=after)]
    if events == 2:
        first, second = ({f"__debezium.{name}key": json.dumps({"id": id_})} for name, id_ in (("new", 2), ("old", 1)))
        changes = [{"key": {"id": 1}, "value": DELETE, "headers": first}]
        changes += [{"key": {"id": 2}, "value": {**CREATE, "after": after}, "headers": second}]
    rows, refused = replayed(INSERT, *changes)
    assert (rows, list(refused)) == ([INSERTED, ("d", 1, None, None)], [len(changes)])
    assert replayed(*changes[-1:])[0] == [("d", 1, None, None)]


def test_a_refused_key_change_below_the_horizon_deletes_nothing() -> None:
    """Tombstones below it may be gone, so the delete could hide nothing, or would come after a newer row."""
    change = postgres("u", 20, before={"id": 1, "n": 1, "big": "b"}, after={"id": 2, "n": "x", "big": "b"})
    assert replayed(change, horizon=encode_place(30, 0))[0] == []
    assert replayed(change, horizon=encode_place(20, 0))[0] == [("d", 1, None, None)]


def test_an_ignored_truncate_empties_nothing() -> None:
    rows, refused = replayed(INSERT, postgres("t", 20), table=orders(**SETTINGS, truncate="ignore"))
    assert (rows, refused) == ([INSERTED], {1: "pipeline.yml ignores truncates of the table: drop it"})


def with_schema(event: Json) -> Json:
    row = event["before"] or event["after"]
    fields = [{"field": name, "type": "string" if name == "w" else "int64"} for name in row]
    return {"schema": {"fields": [{"field": "after", "fields": fields}]}, "payload": event}


def corrected(reader: Decoding, partitions: int, damaged: str = str(3 << 70)) -> DecodedEvents:
    """What the quarantined update of a keyless table gives once its value is corrected, and the lake has a column w."""
    (unfit,) = [unfit for events in reader.events for unfit in events.unfit]
    payload = {name: str(text).replace(damaged, "2") for name, text in unfit.payload.items()}
    entry = KeptText(quarantine_id=1, event=dataclasses.replace(unfit, payload=payload))
    schema = TableSchema(columns=(Column(name="v", type="int8"), Column(name="w", type="text")), key=())
    known = KnownTable(name=ORDERS, source_id=0, key=(), published_as="", schema=schema)
    source = EventsAlone(stream="shop", kind="kafka", tables=(orders(),))
    (decoded,) = source.decode_quarantined(known, [entry], columns=schema.columns, stream_partitions=range(partitions))
    return decoded


@pytest.mark.parametrize(("partitions", "then", "is_found"), [(1, 1, False), (1, 2, False), (2, 2, True)])
def test_an_old_row_without_a_column_is_judged_by_the_partitions_that_the_stream_had(
    partitions: int, then: int, *, is_found: bool
) -> None:
    """In several, the event may be older than the column; in one, the column was dropped, and the row has its value."""
    reader, before, after = Decoding(orders(), partitions=partitions), {"v": 1}, {"v": 3 << 70}
    reader.send(with_schema(postgres("c", 10, after={"v": 1, "w": "y"})))
    reader.send(with_schema(postgres("u", 20, before=before, after=after)))
    decoded = corrected(reader, then)
    assert decoded.rows["_cdc_op"].to_pylist() == (["d", "i"] if is_found else [])
    assert ["came without the column w" in why for why in decoded.refused.values()] == [True] * (not is_found)


def test_an_old_row_from_before_a_column_was_added_is_found_beside_a_topic_of_transactions() -> None:
    """That topic is a registered stream partition, too, and the stream itself had one."""
    reader = Decoding(orders())
    reader.send(with_schema(postgres("c", 10, after={"v": 1})))
    reader.send(with_schema(postgres("u", 20, before={"v": 1}, after={"v": 3 << 70})))
    decoded = corrected(reader, 2)
    assert (decoded.rows["_cdc_op"].to_pylist(), decoded.refused) == (["d", "i"], {})


@pytest.mark.parametrize(("first", "is_found"), [({"v": 1}, True), ({"v": 1, "w": "y"}, False)])
def test_a_damaged_line_is_judged_by_the_columns_that_its_table_had(first: Json, *, is_found: bool) -> None:
    """Beside a topic of transactions, too: a column that was added later hides no old row, a dropped one does."""
    reader = Decoding(orders())
    reader.send(with_schema(postgres("c", 10, after=first)))
    update = json.dumps(with_schema(postgres("u", 20, before={"v": 1}, after={"v": "damaged"})))
    reader.send(update.replace('"damaged"', "damaged").encode())
    assert ["is no JSON" in why for why in reader.refused] == [True]
    decoded = corrected(reader, 2, "damaged")
    assert decoded.rows["_cdc_op"].to_pylist() == (["d", "i"] if is_found else [])
    assert ["came without the column w" in why for why in decoded.refused.values()] == [True] * (not is_found)


def test_deletes_beside_each_other_are_none_of_them_lost() -> None:
    other = postgres("d", 20, before={"id": 3, "n": None, "big": None})
    rows, refused = replayed(DELETE, DELETE, other)
    assert ([row[:2] for row in rows], refused) == ([("d", 1), ("d", 3)], {})
