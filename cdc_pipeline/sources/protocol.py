"""What the consumer asks of a source: batches of change events in stream order, and a way to say how far it got."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_pipeline.record import TableName, TableSchema

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfitEvent:
    """A change event that cannot be applied, and why: kept aside whole, never applied in part."""

    stream_partition: int
    version: str
    commit_position: int
    column: str
    payload: Mapping[str, str | None]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEvents:
    """Change events of one table under one schema, in stream order.

    `rows` has the columns of a slice file (`slice_file.event_schema`); `commit_position` and `stream_partition`
    have one entry per row. An event of a transaction that is not complete yet has the highest commit position.
    `release`: of rows that lie in a file, lets go of the memory that reading them took; they are no longer in stream
    order.
    """

    table: TableName
    schema: TableSchema
    rows: pa.Table
    commit_position: Integers
    stream_partition: Integers
    unfit: tuple[UnfitEvent, ...] = ()
    release: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    """Complete transactions in stream order, one entry each: commit position, the place behind it, commit time.

    `commit_time` counts microseconds since 1970-01-01T00:00:00Z. Positions rise strictly.
    """

    commit_position: Integers
    end_position: Integers
    commit_time: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A message of ours that came back through the stream: `text` as it was sent, and where it was committed."""

    text: str
    commit_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """What one read brought; tables in it may repeat, when a schema changed."""

    events: tuple[TableEvents, ...]
    transactions: Transactions
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlace:
    """Where a stream partition is read on: its next offset, and what its next reader has to know beside that.

    `last_position`: by table, what its events have shown so far, as the source's reader writes it.
    `begun`: number and name of files that were begun since the place that was asked for before.
    """

    offset: str
    last_position: Mapping[str, str] = field(default_factory=dict)
    begun: Mapping[int, str] = field(default_factory=dict)


class ChangeStream(Protocol):
    """All stream partitions of one source, read from one place on. Not safe for two threads."""

    def read(self, wait: timedelta) -> EventBatch | None:
        """The next events, or None when none came within `wait`. Raises SourceAway when the connection broke."""

    def places_at(self, position: int) -> Mapping[int, PartitionPlace]:
        """Every stream partition's place at a position that was cut at; positions asked for never go back."""

    def send_mark(self, text: str, *, is_sign_of_life: bool = False) -> None:
        """Commit a message to the source that comes back as a Mark: a heartbeat, or a place to cut at.

        For a sign of life, what is still being written may be held back.
        """

    def confirm(self, commit_position: int) -> None:
        """Let the source forget what lies before the transaction at `commit_position`, which is registered."""

    def close(self) -> None:
        """The source may be read by another owner afterwards."""
