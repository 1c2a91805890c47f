"""What would go wrong silently is said before, or at the first event that shows it: one error or warning per cause."""

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc_pipeline.errors import SettingsError, SourceError
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, read_line
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.kafka.survey import TopicSurvey, topics_of_tables
from cdc_pipeline.sources.kafka.topics import Cluster, KeptRecords, Topic
from cdc_pipeline.wiring.adapters import source_of
from tests.support.change_files import NOWHERE, ChangeFolder, NothingKnown, Read, csv_text, json_lines
from tests.support.recordings import WITH_SCHEMA, recorded

ORDERS = TableName.parse("shop.public.orders")
Row = Mapping[str, Any]


def event(
    after: Row | None, *fields: Row, before: Row | None = None, operation: str = "c", key: Row | None = None
) -> Row:
    """A record of a sink, with the schema that has `fields`, or without one."""
    source = {"version": "3.4.0.Final", "connector": "postgresql", "db": "shop", "schema": "public", "table": "orders"}
    value: dict[str, Any] = {"op": operation, "before": before, "after": after, "source": source}
    if fields:
        value = {"schema": {"fields": [{"field": "after", "fields": list(fields)}]}, "payload": value}
    return {"key": {"id": 1} if key is None else key, "value": value}


def read(folder: Path, *events: Row, table: Row) -> tuple[Read, list[str]]:
    """What becomes of the events, and the names of the warnings."""
    orders = ChangeFolder(
        folder=folder, source={"format": "debezium"}, tables=[{"name": "shop.public.orders", **table}]
    )
    orders.write("1.jsonl", json_lines(events))
    with capture_logs() as logs:
        found = orders.read()
    return found, [log["event"] for log in logs if log["log_level"] == "warning"]


ID = {"field": "id", "type": "int32"}
BY_DEFAULT = {"field": "n", "type": "int32", "optional": True, "default": 7}


@pytest.mark.parametrize(
    ("field", "values", "warnings"),
    [
        (BY_DEFAULT, [8, 7, 7], ["NULL may arrive as the column's default"]),
        (BY_DEFAULT, [8, None, 7], []),
        (BY_DEFAULT | {"optional": False}, [7], []),
    ],
    ids=["default", "null", "never null"],
)
def test_a_connector_that_may_replace_null_is_warned_of_once(
    field: Row, values: list[int | None], warnings: list[str], tmp_path: Path
) -> None:
    events = [event({"id": number, "n": value}, ID, field) for number, value in enumerate(values)]
    found, warned = read(tmp_path, *events, table={"id": ["id"]})
    assert warned == warnings
    assert len(found.changes) == len(values)


def test_the_recording_of_a_connector_that_replaced_null_is_warned_of(tmp_path: Path) -> None:
    orders = [message for message in recorded("postgres_with_schema") if message["topic"].endswith("public.orders")]
    (table, _) = WITH_SCHEMA
    _, warned = read(tmp_path, *orders, table={**table, "name": "shop.public.orders"})
    assert warned == ["NULL may arrive as the column's default"]


@pytest.mark.parametrize(
    ("name", "is_warned"),
    [
        ("org.apache.kafka.connect.data.Timestamp", True),
        ("org.apache.kafka.connect.data.Time", True),
        ("org.apache.kafka.connect.data.Date", False),
        ("io.debezium.time.Timestamp", False),
        ("io.debezium.time.MicroTimestamp", False),
    ],
)
def test_a_connector_that_cuts_times_to_milliseconds_is_warned_of_once(
    name: str, *, is_warned: bool, tmp_path: Path
) -> None:
    field = {"field": "n", "type": "int64", "name": name}
    events = [event({"id": number, "n": number}, ID, field) for number in range(3)]
    wider = event({"id": 4, "n": 4, "more": 1}, ID, field, {"field": "more", "type": "int32"})
    found, warned = read(tmp_path, *events, wider, table={"id": ["id"]})
    assert warned == (["times may be cut to milliseconds"] if is_warned else [])
    assert len(found.changes) == 4


DOUBLE = {"field": "price", "type": "double"}
PROPAGATED = DOUBLE | {"parameters": {"__debezium.source.column.type": "NUMERIC"}}


@pytest.mark.parametrize(
    ("field", "columns", "is_refused"),
    [
        (DOUBLE, {"price": "decimal(12,2)"}, True),
        (PROPAGATED, {}, True),
        (PROPAGATED, {"price": "float8"}, False),
        (DOUBLE, {}, False),
    ],
    ids=["declared", "propagated", "accepted", "a double"],
)
def test_a_decimal_that_is_sent_as_a_double_is_quarantined(
    field: Row, columns: Row, *, is_refused: bool, tmp_path: Path
) -> None:
    found, _ = read(tmp_path, event({"id": 1, "price": 9.5}, ID, field), table={"id": ["id"], "columns": columns})
    assert [len(found.changes), len(found.unfit)] == ([0, 1] if is_refused else [1, 0])
    assert all(
        "round it to double" in unfit.reason and "decimal.handling.mode" in unfit.reason for unfit in found.unfit
    )


def test_an_event_whose_id_is_an_array_is_quarantined(tmp_path: Path) -> None:
    array = {"field": "id", "type": "array", "items": {"type": "int32"}}
    found, _ = read(tmp_path, event({"id": [1, 2]}, array), table={"id": ["id"]})
    assert [len(found.changes), len(found.unfit)] == [0, 1]
    assert "the column id in the id of shop.public.orders is of the type int4[]" in found.unfit[0].reason


@pytest.mark.parametrize(
    ("value", "is_warned"), [(9.5, True), ("9.50", False), (9, False), (None, False)], ids=["9.5", "text", "9", "null"]
)
def test_a_decimal_as_a_number_without_a_schema_is_warned_of(value: object, *, is_warned: bool, tmp_path: Path) -> None:
    events = [event({"id": number, "price": value}) for number in (1, 2)]
    table = {"id": ["id"], "columns": {"id": "int", "price": "numeric(12,2)"}}
    found, warned = read(tmp_path, *events, table=table)
    assert (len(found.changes), warned) == (2, ["decimals may be rounded"] if is_warned else [])


@pytest.mark.parametrize(
    ("before", "key", "is_refused"),
    [
        (None, {"id": 1}, True),
        ({"id": 1, "email": None}, {"id": 1}, True),
        ({"id": 1, "email": "old"}, {"id": 1}, False),
        (None, {"email": "new"}, False),
    ],
    ids=["no image", "key alone", "whole image", "key is the id"],
)
def test_an_update_that_may_hide_a_change_of_the_id_is_quarantined(
    before: Row | None, key: Row, *, is_refused: bool, tmp_path: Path
) -> None:
    update = event({"id": 1, "email": "new"}, before=before, operation="u", key=key)
    table = {"id": ["email"], "columns": {"id": "int", "email": "text"}}
    found, _ = read(tmp_path, event({"id": 1, "email": "old"}), update, table=table)
    assert bool(found.unfit) is is_refused
    assert all("came without the old email" in unfit.reason for unfit in found.unfit)


@pytest.mark.parametrize(("old", "is_refused"), [({"a": 1, "b": None}, True), ({"a": 2, "b": None}, False)])
def test_an_update_without_a_key_that_shows_a_part_of_another_id_is_quarantined(
    old: Row, *, is_refused: bool, tmp_path: Path
) -> None:
    update = event({"a": 2, "b": 5}, before=old, operation="u")["value"]
    found, _ = read(tmp_path, update, table={"id": ["a", "b"], "columns": {"a": "int", "b": "int"}})
    assert [len(found.changes), len(found.unfit)] == ([0, 1] if is_refused else [1, 0])


def settings(**source: Any) -> Settings:
    tables = [{"name": str(ORDERS), "id": ["id"], "columns": {"id": "int", "shop": "int"}}]
    return Settings.model_validate(
        {"folder": Path("/"), "name": "shop", "lake": "lake", "source": source, "tables": tables}
    )


KAFKA = {"kind": "kafka", "servers": "b:9092", "topic": "{table}"}


@pytest.mark.parametrize(("key", "is_refused"), [({"shop": 1}, True), ({"id": 1, "shop": 1}, False)])
def test_a_compacted_topic_whose_key_several_rows_share_is_refused(key: Row, *, is_refused: bool) -> None:
    listed = settings(**KAFKA).tables
    found = read_line(json.dumps(event({"id": 1, "shop": 1}, key=key)).encode())
    assert isinstance(found, EnvelopeEvent)
    tables = DebeziumTables(listed, {}, upserts=[ORDERS])
    if is_refused:
        with pytest.raises(SourceError, match="keeps one record of each key, and its key lacks id"):
            tables.layout(found, listed[0])
    else:
        assert tables.layout(found, listed[0]) is not None


@pytest.mark.parametrize(("minutes", "is_warned"), [(59, True), (60, False), (None, False)])
def test_a_topic_that_is_soon_deleted_is_warned_of(minutes: int | None, *, is_warned: bool) -> None:
    shop = settings(**KAFKA)
    retention = None if minutes is None else timedelta(minutes=minutes)
    kept = {0: KeptRecords(first=0, end=0)}
    topic = Topic(name="orders", topic_id="1", is_compacted=False, retention=retention, kept=kept)
    assert isinstance(shop.source, KafkaSource)
    survey = TopicSurvey(
        stream="shop",
        folder=Path("/"),
        settings=shop.source,
        listed=shop.tables,
        progress={},
        registered={},
        cluster=Cluster(cluster_id="c", topics={"orders": 1}),
        topics={"orders": topic},
        of_transactions=None,
        topics_of=topics_of_tables(shop.source, shop.tables, ["orders"]),
    )
    with capture_logs() as logs:
        survey.set_up()
    assert [log["event"] for log in logs] == (["records may be deleted before they are read"] if is_warned else [])
    assert all("retention.ms" in log["remedy"] for log in logs)


UPSERTS = {"format": "upserts", "order_by": ["at"], "operation_column": "op", "time_column": "ts"}
WHOLE = {"op": "insert", "at": 1, "ts": "2026-01-01T00:00:00Z", "id": 1, "name": "Ada", "amount": "1.00"}


@pytest.mark.parametrize("missing", ["id", "at", "op", "ts"])
def test_a_table_whose_first_file_lacks_a_named_column_is_refused_and_no_other(missing: str, tmp_path: Path) -> None:
    columns = {"id": "bigint", "name": "text", "amount": "numeric(12,2)"}
    tables = [{"name": f"shop.public.{name}", "id": ["id"], "columns": columns} for name in ("orders", "items")]
    folder = ChangeFolder(folder=tmp_path, source=UPSERTS, tables=tables)
    damaged = {name: value for name, value in WHOLE.items() if name != missing}
    folder.write("orders/1.csv", csv_text([damaged]))
    folder.write("items/1.csv", csv_text([WHOLE]))
    survey = folder.opened().survey(NothingKnown(offset=None))
    (refused,) = survey.refused.values()
    assert f"orders/1.csv, the first file of shop.public.orders, has no column {missing}" in str(refused)
    assert [str(table.name) for table in survey.tables] == ["shop.public.items"]
    read = folder.read()
    assert ([row["name"] for _, row in read.changes], read.unfit) == (["Ada"], [])


@pytest.mark.parametrize(
    ("first", "refused"),
    [("I,1,Ada,9.50\n", True), ("name,amount\n", True), ("Op,id,name,amount\n", False), ("\n", False)],
)
def test_the_names_of_a_first_file_without_rows_are_checked(tmp_path: Path, first: str, *, refused: bool) -> None:
    """They may be its only row."""
    folder = ChangeFolder(folder=tmp_path, source={"format": "dms"})
    folder.write("public/orders/1.csv", first)
    found = folder.opened().survey(NothingKnown(offset=None)).refused
    assert ["has no column " in str(why) for why in found.values()] == [True] * refused


@pytest.mark.parametrize("operation", ["truncate", "ignore"])
def test_a_truncate_does_not_speak_for_the_first_file_since_it_has_no_row(tmp_path: Path, operation: str) -> None:
    """Nor does what is ignored."""
    source = {"format": "upserts", "operation_column": "op", "operations": {"x": operation}}
    folder = ChangeFolder(folder=tmp_path, source=source)
    folder.write("orders/1.jsonl", json_lines([{"op": "x"}]))
    assert folder.opened().survey(NothingKnown(offset=None)).refused == {}


def test_one_bad_row_does_not_speak_for_the_first_file_and_a_missing_column_is_warned_of(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source={"format": "upserts"})
    folder.write("orders/1.jsonl", b"no JSON\n" + json_lines([{"name": "no id"}, {"id": 1, "name": "Ada"}]))
    with capture_logs() as logs:
        survey = folder.opened().survey(NothingKnown(offset=None))
    assert survey.refused == {}
    assert [(log["event"], log["column"]) for log in logs] == [("column not in the first file", "amount")]


@pytest.mark.parametrize("table", ["{table}", "orders", "aws-{table}"])
def test_two_tables_with_one_name_in_dynamodb_are_refused(tmp_path: Path, table: str) -> None:
    listed = [{"name": f"aws.{where}.orders", "id": ["id"], "columns": {"id": "text"}} for where in ("eu", "us")]
    document = {"folder": tmp_path, "name": "shop", "lake": "lake", "tables": listed}
    source = {"kind": "dynamodb", "table": table}
    with pytest.raises(SettingsError, match=r"aws\.eu\.orders and aws\.us\.orders are both '.*orders' in DynamoDB"):
        source_of(Settings.model_validate(document | {"source": source}), NOWHERE)
    each = {"kind": "dynamodb", "table": "{schema}-{table}"}
    assert source_of(Settings.model_validate(document | {"source": each}), NOWHERE)
