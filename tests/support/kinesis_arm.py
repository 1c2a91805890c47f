"""A stream of Kinesis with one table, for the suite that holds all sources to the same promises."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.wiring import Pipeline
from tests.support.event_files import NOBODY_LISTENS
from tests.support.memory_source import Change
from tests.support.pipelines import opened_pipeline
from tests.support.shards import KinesisStreams
from tests.support.source_arms import debezium_events


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisArm:
    """One stream with one shard on a server that other tests use, too."""

    folder: Path
    store_url: str
    streams: KinesisStreams
    transactions: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.streams.create()

    @property
    def table(self) -> TableName:
        return TableName.parse("shop.public.orders")

    def opened(self) -> AbstractContextManager[Pipeline]:
        source = {"kind": "kinesis", "stream": self.streams.name, "reads_per_second": 100}
        document = {
            "folder": self.folder,
            "name": "shop",
            "lake": "lake",
            "slice_length": "1h",
            "source": source | self.streams.server,
            "tables": [{"name": str(self.table), "id": ["id"], "columns": {"id": "int", "note": "text"}}],
        }
        settings = Settings.model_validate(document)
        return opened_pipeline(settings, store_url=self.store_url, spark_url=NOBODY_LISTENS)

    def commit(self, *changes: Change) -> None:
        self.streams.put(*debezium_events(next(self.transactions), *changes))

    def made(self) -> list[Any]:
        """Nothing but the stream that is there."""
        return self.streams.names()
