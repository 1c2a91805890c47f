"""Where the demo's replication task puts rows, in the forms of AWS DMS: Parquet files in a folder, or a stream."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_pipeline.errors import SourceError
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.types import arrow_schema

OPERATION, TIME, TRANSACTION = "Op", "ts", "transaction"
"""Columns of changed rows beside those of the table: I, U or D; time of the commit; number of the transaction."""
FULL_LOAD = "LOAD00000001"
_UNFINISHED = ".unfinished"
_NAMES = {"I": "insert", "U": "update", "D": "delete"}
_MOST_RECORDS, _MOST_BYTES = 500, 4_000_000


class DmsTarget(Protocol):
    """Takes the rows of the tables first, then changes in the order of the source's log."""

    def load(self, table: TableName, schema: TableSchema, blocks: Iterable[pa.RecordBatch]) -> None:
        """Writes all rows of a table. They are durable and readable on return."""

    def write(self, table: TableName, schema: TableSchema, changes: pa.Table, end: int) -> None:
        """Writes changes durably. `end`: position behind the last of them."""

    def publish(self, end: int) -> None:
        """Lets readers see the changes up to the position `end`. Drops those that were written behind it."""


@dataclass(frozen=True, slots=True)
class DmsFolder:
    """One folder per table below `folder`: a file of the full load, then files of changes, named by their position.

    A file is renamed into its folder when it is whole and its position is noted, so no change is in two files.
    """

    folder: Path

    def load(self, table: TableName, schema: TableSchema, blocks: Iterable[pa.RecordBatch]) -> None:
        unfinished = self._path(_UNFINISHED, FULL_LOAD)
        with pq.ParquetWriter(unfinished, arrow_schema(schema)) as writer:
            for block in blocks:
                writer.write_batch(block)
        unfinished.rename(self._path(f"{table.schema}/{table.table}", FULL_LOAD))

    def write(self, table: TableName, schema: TableSchema, changes: pa.Table, end: int) -> None:
        rows = changes.select([OPERATION, TIME, *schema.names])
        pq.write_table(rows, self._path(f"{_UNFINISHED}/{table.schema}/{table.table}", f"{end:016x}"))

    def publish(self, end: int) -> None:
        unfinished = self.folder / _UNFINISHED
        for path in unfinished.glob("*/*/*.parquet"):
            if int(path.stem, 16) <= end:
                path.rename(self.folder / path.relative_to(unfinished))
            else:
                path.unlink()

    def _path(self, folder: str, name: str) -> Path:
        path = self.folder / folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


@dataclass(frozen=True, slots=True)
class DmsStream:
    """One stream of Kinesis for all tables. `client`: boto3's. A task that was killed sends its last changes again."""

    client: Any
    stream: str

    def load(self, table: TableName, schema: TableSchema, blocks: Iterable[pa.RecordBatch]) -> None:
        for block in blocks:
            self._put(_record(table, schema, "load", row, {}) for row in block.to_pylist())

    def write(self, table: TableName, schema: TableSchema, changes: pa.Table, end: int) -> None:
        del end
        self._put(self._change(table, schema, row) for row in changes.to_pylist())

    def publish(self, end: int) -> None:
        """Does nothing: a stream shows every record at once."""

    def _change(self, table: TableName, schema: TableSchema, row: dict[str, Any]) -> dict[str, Any]:
        operation, committed, transaction = (row.pop(name) for name in (OPERATION, TIME, TRANSACTION))
        about = {"transaction-id": transaction, "commit-timestamp": committed.isoformat()}
        return _record(table, schema, _NAMES[operation], row, about)

    def _put(self, records: Iterable[dict[str, Any]]) -> None:
        for block in _blocks(records):
            failed = self.client.put_records(StreamName=self.stream, Records=block)["FailedRecordCount"]
            if failed:
                raise SourceError(f"{self.stream} refused {failed} records", remedy="read the log of its server")


def _record(
    table: TableName, schema: TableSchema, operation: str, row: Mapping[str, Any], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns a record as put_records takes it. Changes of one id have one partition key: the id."""
    metadata = {
        "record-type": "data",
        "operation": operation,
        "partition-key-type": "primary-key",
        "schema-name": table.schema,
        "table-name": table.table,
        **about,
    }
    content = json.dumps({"data": row, "metadata": metadata}, default=_plain)
    key = ".".join([table.schema, table.table, *(str(row[name]) for name in schema.key)])
    return {"Data": content.encode(), "PartitionKey": key}


def _plain(value: object) -> str:
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)


def _blocks(records: Iterable[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    """One call takes at most 500 records and 5 MB."""
    block: list[dict[str, Any]] = []
    size = 0
    for record in records:
        if len(block) == _MOST_RECORDS or size > _MOST_BYTES:
            yield block
            block, size = [], 0
        block.append(record)
        size += len(record["Data"])
    if block:
        yield block
