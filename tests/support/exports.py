"""A pipeline over change files whose tables begin with exported files, and a table's rows as a dictionary by id."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.steps import OnStep, no_step
from cdc_pipeline.wiring import LakeFactory, Pipeline
from tests.crash.world import make_lake
from tests.support.change_files import csv_text, json_lines, parquet_bytes
from tests.support.delta_rows import seen
from tests.support.event_files import NOBODY_LISTENS
from tests.support.memory_lake import MemoryLake
from tests.support.pipelines import opened_pipeline, stored_rows
from tests.support.s3 import REGION

COLUMNS = {"id": "bigint", "name": "text", "amount": "numeric(12,2)"}
WRITERS = {"csv": csv_text, "jsonl": json_lines, "parquet": parquet_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTables:
    """`folder` is that of pipeline.yml: changes lie in `files/<table>/`, exports wherever a test writes them.

    `s3`: the endpoint of a server with buckets.
    """

    folder: Path
    store_url: str
    tables: Sequence[str] = ("orders",)
    source: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=lambda: COLUMNS)
    table: Mapping[str, Any] = field(default_factory=dict)
    snapshot: Mapping[str, Any] = field(default_factory=dict)
    spark_url: str = NOBODY_LISTENS
    make_lake: LakeFactory | None = make_lake
    s3: str = ""

    def __post_init__(self) -> None:
        """Set-up wants at least one file."""
        self.write("files/orders/0.jsonl", "")

    @property
    def settings(self) -> Settings:
        listed = [
            {"name": f"shop.public.{name}", "id": ["id"], "columns": self.columns, **self.table} for name in self.tables
        ]
        source = {"kind": "change_files", "path": "files", "folder": "{table}", "list_every": "1s", **self.source}
        document = {"folder": self.folder, "name": "shop", "lake": "lake", "slice_length": "1h"}
        document["snapshot"] = dict(self.snapshot)
        server = {"endpoint": self.s3, "region": REGION, "path_style": True} if self.s3 else {}
        return Settings.model_validate(document | {"source": source, "tables": listed, "object_store": server})

    @contextmanager
    def opened(self, on_step: OnStep = no_step) -> Iterator[Pipeline]:
        with opened_pipeline(
            self.settings,
            store_url=self.store_url,
            spark_url=self.spark_url,
            on_step=on_step,
            make_lake=self.make_lake,
        ) as pipeline:
            yield pipeline

    def write(self, name: str, content: bytes | str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


def named(table: str) -> TableName:
    return TableName(database="shop", schema="public", table=table)


def lake_rows(pipeline: Pipeline, table: TableName) -> list[dict[str, Any]]:
    """What a reader sees, in the order of the ids."""
    if isinstance(pipeline.lake, MemoryLake):
        rows = pipeline.lake.rows(pipeline.lake_table(table))
    else:
        rows = stored_rows(pipeline, table)
    return sorted(seen(rows), key=lambda row: int(row["id"]))
