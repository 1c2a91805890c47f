"""A table of DynamoDB, for the suite that holds all sources to the same promises."""

import secrets
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.wiring import Pipeline
from tests.support.aws import aws_client
from tests.support.event_files import NOBODY_LISTENS
from tests.support.memory_source import Change
from tests.support.pipelines import opened_pipeline
from tests.support.s3 import REGION


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamodbArm:
    """One table of its own on a server that other tests use, too. A transaction is one item after the other."""

    folder: Path
    store_url: str
    endpoint: str
    name: str = field(default_factory=lambda: f"orders-{secrets.token_hex(4)}")

    def __post_init__(self) -> None:
        self._client().create_table(
            TableName=self.name,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "N"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )

    @property
    def table(self) -> TableName:
        return TableName.parse("shop.aws.orders")

    def opened(self) -> AbstractContextManager[Pipeline]:
        document = {
            "folder": self.folder,
            "name": "shop",
            "lake": "lake",
            "slice_length": "1h",
            "source": {
                "kind": "dynamodb",
                "table": self.name,
                "endpoint": self.endpoint,
                "region": REGION,
                "reads_per_second": 100,
            },
            "tables": [{"name": str(self.table), "id": ["id"], "columns": {"id": "int", "note": "text"}}],
        }
        settings = Settings.model_validate(document)
        return opened_pipeline(settings, store_url=self.store_url, spark_url=NOBODY_LISTENS)

    def commit(self, *changes: Change) -> None:
        client = self._client()
        for operation, id_, note in changes:
            key = {"id": {"N": str(id_)}}
            if operation == "d":
                client.delete_item(TableName=self.name, Key=key)
            else:
                client.put_item(TableName=self.name, Item=key | {"note": {"S": note}})

    def made(self) -> list[Any]:
        """Nothing but the table that is there."""
        return [name for name in self._client().list_tables()["TableNames"] if name == self.name]

    def _client(self) -> Any:
        return aws_client("dynamodb", self.endpoint)
