"""Which table an event belongs to, and what a table is before its first whole row."""

import json
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, read_line
from cdc_pipeline.sources.debezium.events_alone import EventsAlone
from cdc_pipeline.sources.debezium.one_line import Undecodable
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.known import KnownTable
from cdc_pipeline.sources.protocol import UnfitEvent
from tests.support.decoding import ORDERS, Decoding, Json, KeptText, orders, postgres


def vitess(keyspace: str, id_: int) -> dict[str, Any]:
    source = {"connector": "vitess", "name": "v", "db": "", "keyspace": keyspace, "table": "orders", "shard": "-80"}
    return {"op": "c", "before": None, "after": {"id": id_}, "source": source | {"ts_ms": 1_700_000_000_000}}


def test_the_keyspace_of_vitess_is_its_database() -> None:
    names = ("v.commerce.orders", "sales.main.orders")
    reader = Decoding(*(TableSettings(name=name, id=("id",), columns={"id": "int8"}) for name in names))
    reader.send(vitess("commerce", 1), vitess("sales", 2), vitess("other", 3), vitess("sales", 4))
    found = {events.table: events.rows["id"].to_pylist() for events in reader.events}
    assert found == {TableName.parse(names[0]): [1], TableName.parse(names[1]): [2, 4]}
    assert reader.skipped == ["row of a table that is not listed"]


def test_an_event_without_a_table_belongs_to_none_while_a_listed_table_is_not_read() -> None:
    event = read_line(json.dumps({**postgres("c", 1, after={"id": 1}), "source": {}}).encode())
    assert isinstance(event, EnvelopeEvent)
    with pytest.raises(Undecodable, match="names no table"):
        DebeziumTables((orders(),), {}, is_only=False).table_of(event)
    found = DebeziumTables((orders(),), {}).table_of(event)
    assert found is not None
    assert found.table == ORDERS


ID = {"type": "int64", "optional": False, "field": "id"}
AT = {"type": "int32", "optional": False, "name": "io.debezium.time.Date", "field": "at"}
COLUMNS = {"type": "struct", "fields": [ID, AT, {"type": "string", "optional": True, "field": "v"}], "optional": True}
ROWS = {"type": "struct", "fields": [COLUMNS | {"field": "before"}, COLUMNS | {"field": "after"}]}
REGISTERED = TableSchema(
    columns=(Column(name="id", type="int8"), Column(name="at", type="date"), Column(name="v", type="text")),
    key=("id", "at"),
)


def key(number: int) -> dict[str, Any]:
    return {"schema": {"type": "struct", "fields": [ID, AT]}, "payload": {"id": number, "at": 19_000}}


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_tombstone_that_compaction_left_before_the_first_row_is_skipped(partitions: int) -> None:
    reader = Decoding(orders(id=("id", "at")), partitions=partitions, upserts={ORDERS})
    reader.send(None, key=key(1))
    whole = postgres("c", 10, after={"id": 2, "at": 19_000, "v": "x"})
    reader.send({"schema": ROWS, "payload": whole}, key=key(2))
    reader.send(None, key=key(2))
    assert reader.skipped == ["delete of a table without rows"]
    assert [(row["_cdc_op"], row["id"]) for row in reader.rows] == [("i", 2), ("d", 2)]
    assert reader.refused == []


def test_a_tombstone_of_a_registered_table_deletes_its_row_whatever_was_read_before() -> None:
    reader = Decoding(orders(id=("id", "at")), known={ORDERS: REGISTERED}, upserts={ORDERS})
    reader.send(None, key=key(2))
    whole = postgres("c", 10, after={"id": 2, "at": 19_000, "v": "x"})
    reader.send({"schema": ROWS, "payload": whole}, key=key(2))
    found = [(row["_cdc_op"], row["id"], row["at"].isoformat()) for row in reader.rows]
    assert found == [("d", 2, "2022-01-08"), ("i", 2, "2022-01-08")]
    assert reader.events[-1].schema == REGISTERED


def test_a_quarantined_tombstone_can_be_replayed() -> None:
    table = orders(id=("id", "at"))
    record = Decoding(table, upserts={ORDERS}).record(None, key=key(2))
    line = {"_cdc_line": record.text.decode(), "_cdc_file": "f", "_cdc_line_number": "1"}
    event = UnfitEvent(stream_partition=0, version="", commit_position=0, column="", payload=line, reason="")
    known = KnownTable(name=ORDERS, source_id=0, key=("id", "at"), published_as="", schema=REGISTERED)
    source = EventsAlone(stream="shop", kind="debezium_files", tables=(table,))
    kept = KeptText(quarantine_id=7, event=event)
    (decoded,) = source.decode_quarantined(known, [kept], columns=(), stream_partitions=[0])
    assert (decoded.rows["id"].to_pylist(), decoded.fitting, decoded.refused) == ([2], [7], {})


def test_a_tombstone_whose_key_has_no_schema_waits_for_the_columns() -> None:
    reader = Decoding(orders(id=("id", "at")), upserts={ORDERS})
    reader.send(None, key=key(1)["payload"])
    assert ["are not known" in why for why in reader.refused] == [True]


def test_a_column_that_is_added_to_a_keyless_table_is_warned_of_once() -> None:
    """An old row that shows its default finds no row of the lake, which has NULL there."""

    def insert(lsn: int, **row: Any) -> dict[str, Any]:
        after = {"field": "after", "fields": [{"field": name, "type": "string"} for name in row]}
        return {"schema": {"fields": [after]}, "payload": postgres("c", lsn, after=row)}

    with capture_logs() as logs:
        reader = Decoding(orders())
        reader.send(insert(10, v="x"), insert(20, v="x", w="y"), insert(30, v="x"), insert(40, v="x", w="y"))
        (events,) = reader.events[-1:]
        Decoding(orders(), known={ORDERS: events.schema}).send(insert(50, v="x", w="y"))
        Decoding(orders(id=("v",))).send(insert(10, v="x"), insert(20, v="x", w="y"))
    assert [(each["table"], each["columns"]) for each in logs if "added" in each["event"]] == [(str(ORDERS), ["w"])]


@pytest.mark.parametrize(
    ("after_restart", "reason"),
    [(False, "the type of the new column w of shop.public.orders is not known"), (True, "the column types of")],
)
def test_a_column_that_is_new_in_events_without_a_schema_is_not_lost(*, after_restart: bool, reason: str) -> None:
    """Without the schema its type is not known, whether the consumer read a schema of the table before or not."""
    reader = Decoding(orders(id=("id", "at")))
    old, new = {"id": 1, "at": 19_000, "v": "x"}, {"id": 2, "at": 19_000, "v": "x", "w": 5}
    reader.send({"schema": ROWS, "payload": postgres("c", 10, after=old)})
    if after_restart:
        reader.restart()
    reader.send(postgres("c", 20, after=new), postgres("u", 30, before=old, after=new | {"id": 1}))
    assert [row["id"] for row in reader.rows] == [1]
    assert [reason in why for why in reader.refused] == [True, True]


def test_a_column_that_is_new_in_events_without_a_schema_is_left_out_where_columns_does_not_list_it() -> None:
    with capture_logs() as logs:
        reader = Decoding(orders(id=("id", "at"), columns={"v": "text"}))
        reader.send({"schema": ROWS, "payload": postgres("c", 10, after={"id": 1, "at": 19_000, "v": "x"})})
        reader.send(postgres("c", 20, after={"id": 2, "at": 19_000, "v": "x", "w": 5}))
    assert [(row["id"], row["v"]) for row in reader.rows] == [(1, "x"), (2, "x")]
    assert [each["column"] for each in logs if "column not read" in each["event"]] == ["w"]


DECIMAL = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}
SHORT = DECIMAL | {"parameters": {"connect.decimal.precision": "5", "scale": "2"}}
LONG = DECIMAL | {"parameters": {"connect.decimal.precision": "9", "scale": "4"}}
DAY = {"type": "int32", "name": "io.debezium.time.Date"}
MOMENT = {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}


@pytest.mark.parametrize(
    ("narrow", "wide", "values", "found", "type_"),
    [
        ({"type": "int16"}, {"type": "int64"}, (7, 1 << 40), [7, 1 << 40], "int8"),
        (SHORT, LONG, ("ATs=", "ATs="), [Decimal("3.1500"), Decimal("0.0315")], "numeric(9,4)"),
        (DAY, MOMENT, (1, 0), [*map(datetime.fromisoformat, ("1970-01-02", "1970-01-01"))], "timestamp"),
    ],
    ids=["integers", "decimals", "dates"],
)
@pytest.mark.parametrize("after_restart", [False, True])
def test_old_events_have_the_columns_of_new_ones_once_a_type_has_grown(
    narrow: Json, wide: Json, values: tuple[Any, Any], found: list[Any], type_: str, *, after_restart: bool
) -> None:
    """Partitions that are read at different places would cut a slice, and claim it alone, at every turn."""
    old, new = of_type(narrow, 10, values[0]), of_type(wide, 20, values[1])
    reader = Decoding(orders(id=("id",)))
    reader.send(new)
    if after_restart:
        reader = Decoding(orders(id=("id",)), known={ORDERS: reader.events[-1].schema})
    reader.send(old, new, old)
    values_read = [value for events in reader.events[-3:] for value in events.rows["n"].to_pylist()]
    assert (values_read, reader.refused) == ([found[0], found[1], found[0]], [])
    assert {events.schema.column("n").type for events in reader.events} == {type_}


def test_an_old_float4_stays_one_once_its_type_has_grown() -> None:
    """The source made 0.10000000149011612 of its 0.1, as the lake does; the event has the digits 0.1."""
    reader = Decoding(orders(id=("id",)))
    reader.send(of_type({"type": "double"}, 10, 0.5), of_type({"type": "float"}, 20, 0.1))
    assert [events.schema.column("n").type for events in reader.events] == ["float8", "float4"]


def test_a_text_is_no_document_though_the_lake_has_both_as_texts() -> None:
    reader = Decoding(orders(id=("id",)))
    document, text = {"type": "string", "name": "io.debezium.data.Json"}, {"type": "string"}
    reader.send(of_type(document, 10, "{}"), of_type(text, 20, "no JSON"))
    assert ([row["n"] for row in reader.rows], reader.refused) == (["{}", "no JSON"], [])
    assert [events.schema.column("n").type for events in reader.events] == ["json", "text"]


def of_type(field: Json, lsn: int, value: object) -> dict[str, Any]:
    fields = [{"type": "int64", "field": "id"}, {**field, "field": "n"}]
    row = {"type": "struct", "fields": [{"field": "after", "fields": fields}]}
    return {"schema": row, "payload": postgres("c", lsn, after={"id": 1, "n": value})}
