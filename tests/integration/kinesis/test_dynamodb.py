"""Tables of DynamoDB, read by their streams on a server that speaks its protocol."""

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings, TableSettings
from cdc_pipeline.settings.aws import DynamodbSource
from cdc_pipeline.sources.debezium.changes import Change, changes_of
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent
from cdc_pipeline.sources.debezium.one_line import LineRefused
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.dynamodb.client import DynamodbClient
from cdc_pipeline.sources.dynamodb.source import TableRecords
from cdc_pipeline.sources.files.partition_files import RawLine
from cdc_pipeline.wiring import Pipeline
from tests.support.aws import aws_client
from tests.support.debezium_lines import PLACEHOLDER
from tests.support.event_files import NOBODY_LISTENS, Row, merged_rows
from tests.support.pipelines import opened_pipeline
from tests.support.s3 import REGION

COLUMNS = {"id": "text", "at": "int8", "price": "numeric", "paid": "boolean", "tags": "jsonb", "rest": "jsonb"}
EXACT = "12345678901234567890.123456789012345678"
"""As many digits as DynamoDB keeps; it drops zeros at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Tables of their own in DynamoDB, and a pipeline over them. `prefix` begins their names."""

    folder: Path
    store_url: str
    endpoint: str
    prefix: str = field(default_factory=lambda: f"t{secrets.token_hex(4)}")

    @property
    def client(self) -> Any:
        return aws_client("dynamodb", self.endpoint)

    def create(self, table: str, view: str | None = "NEW_AND_OLD_IMAGES") -> None:
        stream = {"StreamEnabled": True, "StreamViewType": view} if view else {"StreamEnabled": False}
        self.client.create_table(
            TableName=f"{self.prefix}{table}",
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}, {"AttributeName": "at", "KeyType": "RANGE"}],
            AttributeDefinitions=[
                {"AttributeName": "id", "AttributeType": "S"},
                {"AttributeName": "at", "AttributeType": "N"},
            ],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification=stream,
        )

    def put(self, table: str, **item: Any) -> None:
        self.client.put_item(TableName=f"{self.prefix}{table}", Item=item)

    @contextmanager
    def opened(self, *tables: str, ids: tuple[str, ...] = ("id", "at")) -> Iterator[Pipeline]:
        source = {"kind": "dynamodb", "table": f"{self.prefix}{{table}}", "rest_column": "rest"}
        document = {
            "folder": self.folder,
            "name": "shop",
            "lake": "lake",
            "slice_length": "1h",
            "source": source | {"endpoint": self.endpoint, "region": REGION, "reads_per_second": 100},
            "tables": [{"name": f"shop.aws.{table}", "id": ids, "columns": COLUMNS} for table in tables],
        }
        settings = Settings.model_validate(document)
        with opened_pipeline(settings, store_url=self.store_url, spark_url=NOBODY_LISTENS) as pipeline:
            yield pipeline

    def rows(self) -> list[Row]:
        """Of the table `orders`, after a new consumer has read everything that is there now."""
        with self.opened("orders") as pipeline:
            pipeline.source_setup().set_up()
            pipeline.consumer_runs().consume_until_idle()
            return merged_rows(pipeline, TableName.parse("shop.aws.orders"))


@pytest.fixture
def items(tmp_path: Path, store_url: str, dynamodb_endpoint: str) -> Items:
    return Items(folder=tmp_path, store_url=store_url, endpoint=dynamodb_endpoint)


def test_items_become_rows_and_what_is_no_column_becomes_json(items: Items) -> None:
    items.create("orders")
    first = {"id": {"S": "a"}, "at": {"N": "1"}}
    items.put("orders", **first, price={"N": "12.50"}, paid={"BOOL": True}, color={"S": "red"}, n={"N": EXACT})
    items.put("orders", id={"S": "b"}, at={"N": "2"}, tags={"L": [{"S": "x"}, {"M": {"y": {"N": "3"}}}]})
    rows = items.rows()
    assert [row["id"] for row in rows] == ["a", "b"]
    assert (rows[0]["at"], Decimal(rows[0]["price"]), rows[0]["paid"], rows[0]["tags"]) == (
        1,
        Decimal("12.5"),
        True,
        None,
    )
    assert rows[0]["rest"] == f'{{"color":"red","n":{EXACT}}}'
    assert (rows[1]["tags"], rows[1]["rest"]) == ('["x",{"y":3}]', None)

    items.put("orders", **first, paid={"BOOL": False})
    items.client.delete_item(TableName=f"{items.prefix}orders", Key={"id": {"S": "b"}, "at": {"N": "2"}})
    (row,) = items.rows()
    assert (row["id"], row["paid"], row["price"], row["rest"]) == ("a", False, None, None), "absent attributes are NULL"


def test_an_empty_answer_of_an_open_shard_does_not_say_that_nothing_follows(items: Items) -> None:
    items.create("orders")
    items.put("orders", id={"S": "a"}, at={"N": "1"})
    settings = DynamodbSource.model_validate({"kind": "dynamodb", "endpoint": items.endpoint, "region": REGION})
    with closing(DynamodbClient(settings, items.folder)) as client:
        stream = client.describe(f"{items.prefix}orders")
        assert stream is not None
        (shard,) = stream.shards
        first = client.fetch(stream, client.iterator(stream, shard, "") or "")
        assert first is not None
        second = client.fetch(stream, first.following or "")
    assert second is not None
    assert [(len(each.records), each.behind) for each in (first, second)] == [(1, None), (0, None)]


def test_tables_that_a_stream_cannot_show_are_refused_before_the_first_run(items: Items) -> None:
    items.create("halves", view="NEW_IMAGE")
    items.create("silent", view=None)
    with items.opened("halves", "silent", "nowhere") as pipeline:
        refused = pipeline.source_setup().set_up().refused
    assert {name.table: str(error).partition(";")[0].replace(items.prefix, "") for name, error in refused.items()} == {
        "halves": "the stream of halves has NEW_IMAGE, and only NEW_AND_OLD_IMAGES shows whole rows",
        "silent": "the table silent has no stream that is enabled",
        "nowhere": "there is no stream nowhere of shop.aws.nowhere that these credentials may read",
    }


def test_an_id_that_is_not_the_tables_key_is_refused(items: Items) -> None:
    items.create("orders")
    with items.opened("orders", ids=("id",)) as pipeline:
        (refused,) = pipeline.source_setup().set_up().refused.values()
    assert "is id, at, and id of shop.aws.orders is id" in str(refused)


def record(name: str, **images: Any) -> bytes:
    return repr({"eventName": name, "dynamodb": images}).replace("'", '"').encode()


TABLE = TableSettings.model_validate({"name": "shop.aws.orders", "id": ["id"], "columns": {"id": "text", "b": "bytea"}})


def content(text: bytes) -> Any:
    return content_in(TABLE, text)


def content_in(table: TableSettings, text: bytes) -> Any:
    raw = RawLine(place=0, file="orders shardId-1", number=7, text=text, written=0)
    return TableRecords(tables={"orders": table}, rest_column=None).content(raw)


def changes_in(table: TableSettings, event: object) -> tuple[Change, ...]:
    assert isinstance(event, EnvelopeEvent), event
    layout = DebeziumTables([table], {}).layout(event, table)
    assert layout is not None
    return changes_of(event, layout, before_it=None, alone=True)


def test_a_text_that_equals_debeziums_placeholder_is_a_text() -> None:
    item = {"id": {"S": "a"}, "b": {"S": PLACEHOLDER}}
    (change,) = changes_in(TABLE, content(record("MODIFY", OldImage={"id": {"S": "a"}}, NewImage=item)))
    assert (change.values["b"], change.absent) == (PLACEHOLDER, ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "is no JSON"),
        (b"{}", "no record of a stream"),
        (record("UPSERT"), "unknown operation 'UPSERT'"),
        (record("MODIFY", Keys={"id": {"S": "a"}}), "has no NewImage"),
        (record("INSERT", NewImage={"id": {"X": "a"}}), "unknown type 'X'"),
        (record("INSERT", NewImage={"id": "a"}), "without one type"),
    ],
)
def test_a_damaged_record_is_refused_with_the_reason(text: bytes, words: str) -> None:
    refused = content(text)
    assert isinstance(refused, LineRefused)
    assert words in str(refused)


@pytest.mark.parametrize("type_name", ["json", "jsonb"])
def test_a_text_in_a_column_of_json_is_json_or_its_item_is_quarantined(type_name: str) -> None:
    table = TABLE.model_copy(update={"columns": {"id": "text", "b": type_name}})
    images = [{"id": {"S": "a"}, "b": {"S": text}} for text in ("[1, 2]", "5", "hello", "")]
    *good, word, nothing = (content_in(table, record("INSERT", NewImage=image)) for image in images)
    assert [event.after["b"] for event in good] == ["[1, 2]", "5"]
    assert [str(word), str(nothing)] == ["has a text in b that is no JSON"] * 2


@pytest.mark.parametrize("type_name", ["json", "jsonb"])
def test_of_an_old_item_only_the_id_is_needed(type_name: str) -> None:
    """Without its mend and its delete, an item whose text was quarantined would stay as it was before."""
    table = TABLE.model_copy(update={"columns": {"id": "text", "n": "text", "b": type_name}})
    key = {"id": {"S": "a"}}
    word, good = ({**key, "n": {"S": "x"}, "b": {"S": text}} for text in ("hello", "[1]"))
    mended = content_in(table, record("MODIFY", Keys=key, OldImage=word, NewImage=good))
    assert [change.values for change in changes_in(table, mended)] == [{"id": "a", "n": "x", "b": "[1]"}]
    removed = content_in(table, record("REMOVE", Keys=key, OldImage=word))
    assert [change.values for change in changes_in(table, removed)] == [{"id": "a"}]
    assert mended.before == removed.before == {"id": "a", "n": "x"}


def test_an_id_that_is_no_json_is_refused_in_an_old_item_too() -> None:
    table = TABLE.model_copy(update={"columns": {"id": "jsonb"}})
    refused = content_in(table, record("REMOVE", OldImage={"id": {"S": "hello"}}))
    assert str(refused) == "has a text in id that is no JSON"


def test_a_removed_item_shows_its_old_values() -> None:
    event = content(record("REMOVE", Keys={"id": {"S": "a"}}, OldImage={"id": {"S": "a"}, "b": {"B": "AQI="}}))
    assert isinstance(event, EnvelopeEvent)
    assert (event.operation, event.before, event.after) == ("d", {"id": "a", "b": "AQI="}, None)


def test_a_table_that_is_created_again_before_its_stream_is_read_is_stale(items: Items) -> None:
    items.create("orders")
    with items.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
    items.client.delete_table(TableName=f"{items.prefix}orders")
    items.create("orders")
    items.put("orders", id={"S": "a"}, at={"N": "1"})
    assert items.rows() == []
    with items.opened("orders") as pipeline:
        (row,) = pipeline.store.inspection.run("lag")
    assert (row["state"], "was deleted and created again" in row["reason"]) == ("stale", True)
