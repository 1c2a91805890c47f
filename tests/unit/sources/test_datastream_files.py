"""Change files of Google Datastream: their order, Avro beside JSON, and events that lack what orders or names them."""

import gzip
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.change_files import ORDERS, ChangeFolder, avro_bytes, json_lines
from tests.support.debezium_lines import PLACEHOLDER


def datastream(change: str, id_: int, name: str | None, time: str, **metadata: Any) -> dict[str, Any]:
    return {
        "stream_name": "projects/p/locations/l/streams/s",
        "read_method": "backfill" if change == "BACKFILL" else "cdc",
        "object": "public_orders",
        "uuid": "d7989206-380f-0e81-8056-240501101100",
        "read_timestamp": "2026-01-01T10:00:09.000Z",
        "source_timestamp": time,
        "source_metadata": {
            "schema": "public",
            "table": "orders",
            "is_deleted": change == "DELETE",
            "change_type": "INSERT" if change == "BACKFILL" else change,
            "primary_keys": ["id"],
            **metadata,
        },
        "payload": {"id": id_, "name": name, "amount": "1.00"},
    }


PLACES: dict[str, list[dict[str, Any]]] = {
    "PostgreSQL": [{"lsn": "0/FF", "tx_id": 7}, {"lsn": "0/100", "tx_id": 7}, {"lsn": "1/0", "tx_id": 8}],
    "MySQL": [
        {"log_file": "mysql-bin.000999", "log_position": 900},
        {"log_file": "mysql-bin.001000", "log_position": 4},
        {"log_file": "mysql-bin.001000", "log_position": 20},
    ],
    "SQL Server": [
        {"lsn": "00000025:000001a8:0001"},
        {"lsn": "00000025:000001a8:000a"},
        {"lsn": "00000026:00000010:0001"},
    ],
    "Oracle": [
        {"scn": 15869116216871, "rs_id": "0x0073c9.000a4e4c.01d0", "ssn": 9},
        {"scn": 15869116216871, "rs_id": "0x0073c9.000a4e4c.01d0", "ssn": 67},
        {"scn": 15869116216872, "rs_id": "0x0073c9.000a4e4c.0010", "ssn": 0},
    ],
}
DATASTREAM_AVRO = {
    "type": "record",
    "name": "event",
    "fields": [
        *({"name": name, "type": "string"} for name in ("stream_name", "read_method", "object", "uuid")),
        {"name": "read_timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "source_timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "source_metadata",
            "type": {
                "type": "record",
                "name": "metadata",
                "fields": [
                    {"name": "schema", "type": "string"},
                    {"name": "table", "type": "string"},
                    {"name": "is_deleted", "type": "boolean"},
                    {"name": "change_type", "type": "string"},
                    {"name": "primary_keys", "type": {"type": "array", "items": "string"}},
                    {"name": "lsn", "type": ["null", "string"], "default": None},
                ],
            },
        },
        {
            "name": "payload",
            "type": {
                "type": "record",
                "name": "row",
                "fields": [
                    {"name": "id", "type": "long"},
                    {"name": "name", "type": ["null", "string"]},
                    {"name": "amount", "type": "string"},
                ],
            },
        },
    ],
}


@pytest.mark.parametrize("source", PLACES)
def test_events_of_datastream_are_ordered_by_their_place_in_the_log_whatever_file_has_them(
    tmp_path: Path, source: str
) -> None:
    folder = ChangeFolder(folder=tmp_path, source={"format": "datastream"}, tables=({**ORDERS, "id": []},))
    first, second, third = PLACES[source]
    time = "2026-01-01T10:00:00.000Z"
    folder.write("public_orders/2026/01/01/10/00/b.jsonl", json_lines([datastream("INSERT", 1, "1", time, **first)]))
    later = [datastream("UPDATE", 1, "2", time, **second), datastream("DELETE", 1, None, time, **third)]
    folder.write("public_orders/2026/01/01/10/00/a.jsonl.gz", gzip.compress(json_lines(later)))
    folder.write("public_orders/2026/01/01/10/00/c.jsonl", json_lines([datastream("BACKFILL", 1, "0", time, lsn=None)]))
    read = folder.read()
    assert read.unfit == []
    in_order = sorted(zip(read.versions, read.changes, strict=True))
    assert [(kind, row["name"]) for _, (kind, row) in in_order] == [("i", "0"), ("i", "1"), ("u", "2"), ("d", None)]


def test_datastream_writes_the_same_events_as_avro(tmp_path: Path) -> None:
    events = [
        datastream("INSERT", 1, "Ada", "2026-01-01T10:00:00.000Z", lsn="0/10"),
        datastream("UPDATE-DELETE", 1, "Ada", "2026-01-01T10:00:01.000Z", lsn="0/20"),
        datastream("UPDATE-INSERT", 2, "Ada", "2026-01-01T10:00:01.000Z", lsn="0/21"),
    ]
    times = ("read_timestamp", "source_timestamp")
    typed = [
        {**event, **{name: datetime.fromisoformat(event[name]).astimezone(UTC) for name in times}} for event in events
    ]
    lines = ChangeFolder(folder=tmp_path / "lines", source={"format": "datastream"})
    avro = ChangeFolder(folder=tmp_path / "avro", source={"format": "datastream"})
    lines.write("public_orders/2026/01/01/10/00/a.jsonl", json_lines(events))
    avro.write("public_orders/2026/01/01/10/00/a.avro", avro_bytes(typed, DATASTREAM_AVRO))
    one, other = lines.read(), avro.read()
    assert [(kind, row["id"]) for kind, row in one.changes] == [("i", 1), ("d", 1), ("i", 2)]
    assert (one.changes, one.versions) == (other.changes, other.versions)


def test_a_text_that_equals_debeziums_placeholder_is_a_text(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source={"format": "datastream"})
    time = "2026-01-01T10:00:00.000Z"
    places = {"INSERT": "0/1", "UPDATE": "0/2"}
    events = [datastream(change, 1, PLACEHOLDER, time, lsn=place) for change, place in places.items()]
    folder.write("public_orders/a.jsonl", json_lines(events))
    assert [row["name"] for _, row in folder.read().changes] == [PLACEHOLDER] * 2


@pytest.mark.parametrize("named_in", ["the field", "the type"])
def test_the_records_that_datastream_has_for_times_in_avro_are_the_texts_that_it_has_in_json(
    tmp_path: Path, named_in: str
) -> None:
    """Google's page of types names the logical type in the field, where readers of Avro do not look for it."""
    records: dict[str, dict[str, tuple[str, str | None]]] = {
        "datetime": {"date": ("int", "date"), "time": ("long", "time-micros")},
        "timestampTz": {"timestamp": ("long", "timestamp-micros"), "offset": ("int", "time-millis")},
        "interval": {"months": ("int", None), "hours": ("int", None), "micros": ("long", None)},
    }
    values = {
        "datetime": {"date": 19_724, "time": 3_000_005},
        "timestampTz": {"timestamp": 1_704_153_600_000_001, "offset": 7_200_000},
        "interval": {"months": -14, "hours": 30, "micros": 1_500_000},
    }
    schema: Any = deepcopy(DATASTREAM_AVRO)
    payload = schema["fields"][-1]["type"]["fields"]
    for name, fields in records.items():
        described = [
            {"name": each, "type": kind, "logicalType": of}
            if named_in == "the field" or of is None
            else {"name": each, "type": {"type": kind, "logicalType": of}}
            for each, (kind, of) in fields.items()
        ]
        payload.append({"name": name, "type": ["null", {"type": "record", "name": name, "fields": described}]})
    event = datastream("INSERT", 1, "Ada", "2026-01-01T10:00:00.000Z", lsn="0/10")
    event |= {"read_timestamp": 0, "source_timestamp": 1_767_261_600_000}
    event["payload"] |= values
    types = {"id": "int", "datetime": "timestamp(0)", "timestampTz": "timestamptz(0)", "interval": "interval"}
    folder = ChangeFolder(folder=tmp_path, source={"format": "datastream"}, tables=({**ORDERS, "columns": types},))
    folder.write("public_orders/a.avro", avro_bytes([event], schema))
    read = folder.read()
    assert read.unfit == []
    ((_, row),) = read.changes
    assert [str(row[name]) for name in records] == [
        "2024-01-02 00:00:03.000005",
        "2024-01-02 00:00:00.000001+00:00",
        "-1 years -2 mons +30:00:01.5",
    ]


@pytest.mark.parametrize(
    ("names", "changes"),
    [
        ({"schema": None, "table": "public.orders"}, 1),
        ({"schema": None, "table": "public.orders", "database": "shop"}, 1),
        ({"schema": None, "table": "public.orders", "database": "other"}, 0),
        ({"schema": None, "table": "sales.orders"}, 0),
        ({"schema": "public", "table": "public.orders"}, 0),
    ],
)
def test_an_event_of_datastream_without_a_schema_may_have_it_before_its_table(
    tmp_path: Path, names: dict[str, Any], changes: int
) -> None:
    folder = ChangeFolder(folder=tmp_path, source={"format": "datastream"})
    event = datastream("INSERT", 1, "Ada", "2026-01-01T10:00:00.000Z", log_file="mysql-bin.000002", log_position=4)
    event["source_metadata"].update(names)
    folder.write("public_orders/2026/01/01/10/00/a.jsonl", json_lines([event]))
    read = folder.read()
    assert (len(read.changes), len(read.unfit)) == (changes, 1 - changes)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"payload": None}, "it has no source_metadata or no payload"),
        ({"source_timestamp": None}, "source_timestamp is missing or NULL"),
        ({"source_metadata": {"change_type": "MERGE"}}, "has the unknown change_type 'MERGE'"),
        ({"source_metadata": {"change_type": "INSERT", "lsn": "x"}}, "has an lsn that is none: 'x'"),
        ({"source_metadata": {"change_type": "UPDATE", "gtid": "a:9"}}, "has no version: it has no lsn"),
        ({"source_metadata": {"change_type": "INSERT", "table": "other"}}, "is of the table other, in the folder of"),
    ],
)
def test_an_event_of_datastream_that_lacks_what_orders_or_names_it_is_quarantined(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    folder = ChangeFolder(folder=tmp_path, source={"format": "datastream"})
    event = datastream("INSERT", 1, "Ada", "2026-01-01T10:00:00.000Z", lsn="0/10")
    folder.write("public_orders/2026/01/01/10/00/a.jsonl", json_lines([event | change, event]))
    read = folder.read()
    assert len(read.changes) == 1
    assert why in read.unfit[0].reason


def test_a_time_of_the_far_future_does_not_decide_what_is_too_late(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source={"format": "datastream", "late_by": "7d"})
    times = [
        "2024-01-01T10:00:00Z",
        "2099-01-01T10:00:00Z",
        *(f"2024-01-{day}T10:00:00Z" for day in (10, 20, 30, 21, 19)),
    ]
    rows = [datastream("INSERT", id_, "Ada", time, **PLACES["PostgreSQL"][0]) for id_, time in enumerate(times)]
    folder.write("public_orders/2024/01/01/10/00/a.jsonl", json_lines(rows))
    read = folder.read()
    assert ["is too late" in unfit.reason for unfit in read.unfit] == [True]
    assert [row["id"] for _, row in read.changes] == [0, 1, 2, 3, 4, 5]
