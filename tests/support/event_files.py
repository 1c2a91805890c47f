"""A pipeline over a folder of Debezium's events: files written, consumed, and their slices folded by the kernel."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from cdc_pipeline.metadata_store.ledger.records import RegisteredSlice
from cdc_pipeline.record import ABSENT, OLD_ID_PREFIX, OPERATION, VERSION, Operation, TableName, TableSchema
from cdc_pipeline.settings import Settings
from cdc_pipeline.wiring import LakeFactory, Pipeline
from tests.support.pipelines import opened_pipeline
from tests.support.reference.kernel import KeyedTable, deduplicate, join, join_keyless, net_copies, show
from tests.support.reference.model import Event, KeylessRows, visible

NOBODY_LISTENS = "sc://127.0.0.1:1"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFolder:
    """`folder` is that of pipeline.yml; events lie in `events/` below it. Tables are given as `schema.table`."""

    folder: Path
    store_url: str
    tables: tuple[Mapping[str, Any], ...]
    source: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        document = {
            "folder": self.folder,
            "name": "shop",
            "lake": "lake",
            "slice_length": "1h",
            "source": {"kind": "debezium_files", "path": "events/", **self.source},
            "tables": [{**table, "name": f"shop.{table['name']}"} for table in self.tables],
            **self.more,
        }
        return Settings.model_validate(document)

    def write(self, name: str, *lines: Any, end: str = "\n") -> None:
        """Appends to `events/<name>`; a line that is no text is written as JSON."""
        path = self.folder / "events" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        with path.open("a", encoding="utf-8") as file:
            file.write("\n".join(texts) + end if texts else "")

    @contextmanager
    def opened(self, make_lake: LakeFactory | None = None) -> Iterator[Pipeline]:
        with opened_pipeline(
            self.settings, store_url=self.store_url, spark_url=NOBODY_LISTENS, make_lake=make_lake
        ) as pipeline:
            yield pipeline

    @contextmanager
    def set_up(self) -> Iterator[Pipeline]:
        """The same, after `cdc setup-source`."""
        with self.opened() as pipeline:
            pipeline.source_setup().set_up()
            yield pipeline

    def consume(self) -> None:
        """Everything that is there now, by a consumer that was not there before, after the set-up that people run."""
        with self.set_up() as pipeline:
            pipeline.consumer_runs().consume_until_idle()

    def rows(self, table: str) -> list[Row]:
        """What a reader would see once every registered slice is applied, boundary by boundary."""
        with self.opened() as pipeline:
            return merged_rows(pipeline, TableName.parse(f"shop.{table}"))

    def quarantined(self) -> list[Row]:
        with self.opened() as pipeline:
            return pipeline.store.inspection.run("quarantine")


def slices_of(pipeline: Pipeline, table: TableName) -> tuple[RegisteredSlice, ...]:
    return pipeline.store.slices.slices(pipeline.store.tables.table(table).table_id, 1, 10_000)


def merged_rows(pipeline: Pipeline, table: TableName) -> list[Row]:
    claims: dict[int, list[Event]] = {}
    row = pipeline.store.tables.table(table)
    schema = pipeline.store.tables.schema(row.table_id, row.schema_id or "")
    for each in slices_of(pipeline, table):
        claims.setdefault(each.boundary_id, []).extend(_events(pipeline, each))
    if schema.is_keyless:
        copies = KeylessRows()
        for claim in claims.values():
            copies = join_keyless(copies, net_copies(claim))
        return [dict(content) for content in sorted(copies.elements())]
    keyed = KeyedTable()
    for claim in claims.values():
        keyed = join(keyed, deduplicate(claim))
    others = tuple(name for name in schema.names if name not in schema.key)
    found = visible(show(keyed, columns=others))
    rows = [dict(zip(schema.key, id_, strict=True)) | shown.values for id_, shown in found.items()]
    return sorted(rows, key=lambda shown: tuple(str(shown[name]) for name in schema.key))


def events_of(pipeline: Pipeline, table: TableName) -> list[Row]:
    """Rows of all slice files, in the order of registration."""
    return [row for each in slices_of(pipeline, table) for row in _file_rows(pipeline, each)]


def _file_rows(pipeline: Pipeline, row: RegisteredSlice) -> list[Row]:
    if row.path is None:
        return []
    found: list[Row] = pq.read_table(io.BytesIO(pipeline.objects.get(row.path))).to_pylist()
    return found


def _events(pipeline: Pipeline, row: RegisteredSlice) -> list[Event]:
    if row.schema_id is None:
        return []
    schema = pipeline.store.tables.schema(row.table_id, row.schema_id)
    return [_event(found, schema) for found in _file_rows(pipeline, row)]


def _event(row: Row, schema: TableSchema) -> Event:
    operation, key = Operation(row[OPERATION]), schema.key
    unsaid: Sequence[str] = (*key, *(row[ABSENT] or ()))
    if operation is Operation.TRUNCATE or (operation is Operation.DELETE and key):
        unsaid = schema.names
    return Event(
        operation=operation,
        version=row[VERSION],
        id=() if operation is Operation.TRUNCATE else tuple(row[name] for name in key),
        old_id=tuple(row[OLD_ID_PREFIX + name] for name in key) if operation is Operation.MOVE else (),
        values={name: row[name] for name in schema.names if name not in unsaid},
    )
