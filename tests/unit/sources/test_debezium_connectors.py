"""Events of Oracle, SQL Server, Db2 and MongoDB, as Debezium documents them: their rows and their order."""

import json
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, read_line
from cdc_pipeline.sources.debezium.versions import UPSERT_RANK, sequence_version, source_position
from tests.support.change_files import ChangeFolder, json_lines
from tests.support.decoding import PLACEHOLDER, Decoding

DATA = Path(__file__).parents[2] / "data" / "connectors"
LOWER = {"id": "bigint", "first_name": "text", "email": "text"}
UPPER = {name.upper(): type_ for name, type_ in LOWER.items()}
DOCUMENT = {
    "_id": "text",
    "first_name": "text",
    "visits": "bigint",
    "tags": "json",
    "since": "timestamptz",
    "owed": "numeric(6,2)",
}
TABLES: dict[str, tuple[Mapping[str, Any], list[str]]] = {
    "oracle": (
        {"name": "ORCLPDB1.DEBEZIUM.CUSTOMERS", "id": ["ID"], "columns": UPPER},
        ["source.commit_scn", "source.scn"],
    ),
    "sqlserver": (
        {"name": "testDB.dbo.customers", "id": ["id"], "columns": LOWER},
        ["source.commit_lsn", "source.change_lsn", "source.event_serial_no"],
    ),
    "db2": (
        {"name": "MYDATABASE.MYSCHEMA.CUSTOMERS", "id": ["ID"], "columns": UPPER},
        ["source.commit_lsn", "source.change_lsn"],
    ),
    "mongodb": (
        {"name": "shop.inventory.customers", "columns": DOCUMENT},
        ["source.ts_ms", "source.ord"],
    ),
}


def events(connector: str) -> list[EnvelopeEvent]:
    lines = (DATA / f"{connector}.jsonl").read_bytes().splitlines()
    found = [read_line(line) for line in lines]
    assert all(isinstance(event, EnvelopeEvent) for event in found)
    return [event for event in found if isinstance(event, EnvelopeEvent)]


@pytest.mark.parametrize("connector", TABLES)
def test_positions_and_sequences_rise_with_the_commits(connector: str) -> None:
    found, (_, order) = events(connector), TABLES[connector]
    positions = [source_position(event) for event in found]
    assert positions == sorted(set(positions))
    assert max(positions).bit_length() <= 128
    versions = [sequence_version(event, order, rank=UPSERT_RANK, content=[]) for event in found]
    assert versions == sorted(set(versions))


def test_the_commits_of_db2_are_numbers_of_sixteen_bytes() -> None:
    """As its connector writes them: with colons behind the fourth and the eighth byte."""
    first, second = (
        structs.replace(found, source={**found.source, "commit_lsn": f"00000000:00000000:{number:016x}"})
        for found, number in zip(events("db2"), (0x12D6B5, 0x12D6B6), strict=False)
    )
    assert (source_position(first), source_position(second)) == (0x12D6B5, 0x12D6B6)


@pytest.mark.parametrize("order", ["of the lines", "of the events"])
@pytest.mark.parametrize("connector", TABLES)
def test_events_become_rows(tmp_path: Path, connector: str, order: str) -> None:
    table, fields = TABLES[connector]
    source = {"format": "debezium", "order_by": fields if order == "of the events" else []}
    folder = ChangeFolder(folder=tmp_path, source=source, tables=(table,))
    folder.write("events.jsonl", (DATA / f"{connector}.jsonl").read_bytes())
    read = folder.read()
    assert read.unfit == []
    assert [kind for kind, _ in read.changes] == ["i", "i", "u", "d"]
    assert read.versions == sorted(set(read.versions))


def test_documents_of_mongodb_are_rows_with_a_column_per_field(tmp_path: Path) -> None:
    table, _ = TABLES["mongodb"]
    folder = ChangeFolder(folder=tmp_path, source={"format": "debezium"}, tables=(table,))
    folder.write("events.jsonl", (DATA / "mongodb.jsonl").read_bytes())
    (_, first), (_, second), (_, third), (_, fourth) = folder.read().changes
    assert (first["_id"], first["visits"], json.loads(first["tags"])) == ("596e275826f08b2730779e1f", 1004, ["a", "b"])
    assert (second["_id"], str(second["owed"]), second["since"].isoformat()) == (
        "1005",
        "1.50",
        "2026-01-09T23:06:40.123000+00:00",
    )
    assert (third["first_name"], third["visits"]) == ("Anne Marie", 1005)
    assert fourth["_id"] == "1005"


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz"])
def test_a_date_of_mongodb_is_a_time_with_a_zone_or_without_one(kind: str) -> None:
    table = TableSettings(name="a.shop.orders", id=("_id",), columns={"_id": "text", "at": kind})
    reader = Decoding(table)
    reader.send(document_update(1, '{"_id": "a", "at": {"$date": 1767351600500}}'), key={"id": '"a"'})
    assert reader.refused == []
    assert [row["at"].replace(tzinfo=None).isoformat() for row in reader.rows] == ["2026-01-02T11:00:00.500000"]


def test_a_field_that_a_document_lost_is_null(tmp_path: Path) -> None:
    table = {"name": "a.shop.orders", "id": ["_id"], "columns": {"_id": "text", "name": "text", "note": "text"}}
    source = {"connector": "mongodb", "db": "shop", "collection": "orders", "ts_ms": 1_700_000_000_000, "ord": 1}
    whole, unset = {"_id": {"$oid": "65"}, "name": "Ada", "note": "secret"}, {"_id": {"$oid": "65"}, "name": "Ada"}
    lines = [
        {"op": op, "before": None, "after": json.dumps(document), "source": source | {"ord": number}}
        for number, (op, document) in enumerate([("c", whole), ("u", unset)])
    ]
    folder = ChangeFolder(folder=tmp_path, source={"format": "debezium"}, tables=(table,))
    folder.write("events.jsonl", json_lines(lines))
    (_, first), (_, second) = folder.read().changes
    assert (first["note"], second["note"], second["name"]) == ("secret", None, "Ada")
    assert not second.get("_cdc_absent")


def document_update(number: int, document: str | None) -> dict[str, Any]:
    source = {"connector": "mongodb", "db": "shop", "collection": "orders", "ts_ms": 1_700_000_000_000, "ord": number}
    return {
        "op": "u",
        "before": None,
        "after": document,
        "source": source,
        "updateDescription": {"updatedFields": "{}"},
    }


@pytest.mark.parametrize("partitions", [1, 2])
def test_an_update_whose_document_was_deleted_by_then_is_skipped(partitions: int) -> None:
    table = TableSettings(name="a.shop.orders", id=("_id",), columns={"_id": "text", "v": "int8"})
    reader = Decoding(table, partitions=partitions)
    key = {"id": '"a"'}
    reader.send(document_update(1, None), key=key)
    assert ["capture.mode" in why for why in reader.refused] == [True]
    reader.send(*(document_update(number, '{"_id": "a", "v": 1}') for number in (2, 3)), key=key)
    reader.send(document_update(4, None), key=key)
    reader.send({**document_update(5, None), "op": "d"}, key=key)
    assert [row["_cdc_op"] for row in reader.rows] == ["u", "u", "d"]
    assert (reader.skipped, len(reader.refused)) == (["update of a document that was deleted by then"], 1)


@pytest.mark.parametrize("number", [1, 20])
@pytest.mark.parametrize("sent", [b64encode(PLACEHOLDER.encode()).decode(), PLACEHOLDER.encode().hex()])
def test_bytes_that_oracle_left_out_are_absent_where_its_connector_writes_bytes_as_texts(
    sent: str, number: int
) -> None:
    """With `binary.handling.mode` base64, base64-url-safe or hex. A row alone and many rows take different ways."""
    fields = [{"field": "ID", "type": "int64"}, {"field": "DOC", "type": "string", "optional": True}]
    source = {"connector": "oracle", "db": "ORCL", "schema": "A", "table": "DOCS", "snapshot": "false"}
    reader = Decoding(TableSettings(name="ORCL.A.DOCS", id=("ID",)))
    rows = [{"ID": id_, "DOC": sent} for id_ in range(number)]
    updates = [{"op": "u", "before": None, "after": row, "source": source | {"scn": str(row["ID"])}} for row in rows]
    schema = {"fields": [{"field": "after", "fields": fields}]}
    reader.send(*({"schema": schema, "payload": update} for update in updates))
    assert reader.refused == []
    assert [(row["ID"], row["_cdc_absent"]) for row in reader.rows] == [(id_, ["DOC"]) for id_ in range(number)]
    assert not any("DOC" in row for row in reader.rows)
