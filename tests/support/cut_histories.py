"""Streams as the slice cutter sees them: transactions with changes and marks, delivered in batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from cdc_pipeline.consume.slice_cutter import CUT, CUT_AT
from cdc_pipeline.record import (
    ABSENT,
    COMMIT_TIME,
    OPERATION,
    TRANSACTION,
    VERSION,
    Column,
    TableName,
    TableSchema,
    encode_position,
    encode_version,
)
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.protocol import EventBatch, Marker, TableEvents, Transactions, UnfitEvent

MINUTE = timedelta(minutes=1)
MORNING = datetime(2024, 1, 1, 8, tzinfo=UTC)
START = 1000
NO_CAP = 10**9
TABLES = tuple(TableName(database="shop", schema="public", table=name) for name in ("orders", "customers"))
SCHEMAS = tuple(
    TableSchema(columns=tuple(Column(name=name, type="int8") for name in ("id", *more)), key=("id",))
    for more in ((), ("a",), ("a", "b"))
)


@dataclass(frozen=True, slots=True)
class Change:
    table: TableName
    schema: TableSchema
    stream_partition: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Transaction:
    """`position` is its commit's place, `end` the place behind it; a mark's transaction has no changes."""

    position: int
    end: int
    time: datetime
    changes: tuple[Change, ...] = ()
    mark: str | None = None


@dataclass(frozen=True, slots=True)
class History:
    transactions: tuple[Transaction, ...]

    @property
    def versions(self) -> list[str]:
        return [version for each in self.transactions for version in versions_of(each)]


def versions_of(transaction: Transaction) -> list[str]:
    return [encode_version(transaction.position, ordinal) for ordinal in range(1, len(transaction.changes) + 1)]


@st.composite
def histories(draw: st.DrawFn, *, requests: bool = True) -> History:
    """Commit times jump ahead and step back; a table's schema may change between and within transactions."""
    place, time = START, MORNING
    schemas = dict.fromkeys(TABLES, 0)
    transactions: list[Transaction] = []
    for _ in range(draw(st.integers(0, 12))):
        position = place + draw(st.integers(0, 20))
        end = position + draw(st.integers(1, 20))
        time += timedelta(seconds=draw(st.sampled_from((0, 1, 5, 30, 61, 300, -1, -40, -200))))
        kind = draw(st.sampled_from(("work", "work", "work", "heartbeat", "request" if requests else "heartbeat")))
        mark = None
        if kind == "heartbeat":
            mark = CUT + draw(st.sampled_from(("", ":1")))
        elif kind == "request":
            edges = [START, *(each.end for each in transactions), position, end, end + 30, (1 << 64) - 1]
            mark = f"{CUT_AT}{encode_position(draw(st.sampled_from(edges)))}:1"
        changes = tuple(draw_change(draw, schemas) for _ in range(draw(st.integers(0, 4)))) if mark is None else ()
        transactions.append(Transaction(position, end, time, changes, mark))
        place = end
    return History(tuple(transactions))


def draw_change(draw: st.DrawFn, schemas: dict[TableName, int]) -> Change:
    table = draw(st.sampled_from(TABLES))
    if schemas[table] + 1 < len(SCHEMAS) and draw(st.integers(0, 7)) == 0:
        schemas[table] += 1
    fits = draw(st.integers(0, 7)) > 0
    return Change(table, SCHEMAS[schemas[table]], draw(st.integers(0, 1)), fits)


Step = tuple[Transaction, int | None]
"""One message of the stream: a change of a transaction by its ordinal, or, with None, its commit."""


def messages(history: History) -> list[Step]:
    return [(each, ordinal) for each in history.transactions for ordinal in (*range(1, len(each.changes) + 1), None)]


def batch_of(part: Sequence[Step]) -> EventBatch:
    """What one read brings when it ends anywhere, also within a transaction."""
    events: list[TableEvents] = []
    for table in TABLES:
        run: list[Step] = []
        for each, ordinal in part:
            if ordinal is None or each.changes[ordinal - 1].table != table:
                continue
            if run and schema_of(run[-1]) != schema_of((each, ordinal)):
                events.append(table_events(table, run))
                run = []
            run.append((each, ordinal))
        if run:
            events.append(table_events(table, run))
    closed = [each for each, ordinal in part if ordinal is None]
    return EventBatch(
        events=tuple(events),
        transactions=Transactions(
            commit_position=np.array([each.position for each in closed], dtype=np.int64),
            end_position=np.array([each.end for each in closed], dtype=np.int64),
            commit_time=np.array([int(each.time.timestamp()) * 1_000_000 for each in closed], dtype=np.int64),
        ),
        markers=tuple(
            Marker(text=each.mark, commit_position=each.position) for each in closed if each.mark is not None
        ),
    )


def schema_of(message: Step) -> TableSchema:
    each, ordinal = message
    assert ordinal is not None
    return each.changes[ordinal - 1].schema


def table_events(table: TableName, run: Sequence[Step]) -> TableEvents:
    schema = schema_of(run[0])
    changes = [(each, ordinal, each.changes[ordinal - 1]) for each, ordinal in run if ordinal is not None]
    fitting = [(each, ordinal, change) for each, ordinal, change in changes if change.fits]
    columns: dict[str, list[Any]] = {
        OPERATION: ["u"] * len(fitting),
        VERSION: [encode_version(each.position, ordinal) for each, ordinal, _ in fitting],
        COMMIT_TIME: [each.time for each, _, _ in fitting],
        TRANSACTION: [each.position for each, _, _ in fitting],
        ABSENT: [None] * len(fitting),
    }
    fields = event_schema(schema)
    rows = pa.table(
        [pa.array(columns.get(field.name, [None] * len(fitting)), type=field.type) for field in fields], schema=fields
    )
    return TableEvents(
        table=table,
        schema=schema,
        rows=rows,
        commit_position=np.array([each.position for each, _, _ in fitting], dtype=np.int64),
        stream_partition=np.array([change.stream_partition for _, _, change in fitting], dtype=np.int64),
        unfit=tuple(
            UnfitEvent(
                stream_partition=change.stream_partition,
                version=encode_version(each.position, ordinal),
                commit_position=each.position,
                column="id",
                payload={},
                reason="does not fit",
            )
            for each, ordinal, change in changes
            if not change.fits
        ),
    )


def batches(data: st.DataObject, history: History) -> list[EventBatch]:
    stream = messages(history)
    edges = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    return [batch_of(stream[low:high]) for low, high in pairwise((0, *edges, len(stream)))]
