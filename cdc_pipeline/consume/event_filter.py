"""Drops the columns and truncates that pipeline.yml excludes, and limits commit times to at most `latest`."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from cdc_pipeline.record import ABSENT, OPERATION, Operation, TableName, TableSchema
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.protocol import EventBatch, TableEvents, UnfitEvent
from cdc_pipeline.time_slice import EPOCH

log = structlog.get_logger()

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Filters events by the settings of their tables.

    `latest`: the latest commit time that can be, for times that others than a database server wrote. Labels and
    watermarks never go back, so one wrong time of the far future would hide for ever how far the lake is.
    """

    tables: Mapping[TableName, TableSettings]
    latest: Callable[[], datetime] | None = None

    def kept(self, batch: EventBatch) -> EventBatch:
        """Returns the batch without what is excluded. A later time than `latest` counts as `latest`.

        The times in the rows stay as they are.
        """
        kept = replace(batch, events=tuple(map(self._kept, batch.events)))
        if self.latest is None or not len(batch.transactions.commit_time):
            return kept
        latest = (self.latest() - EPOCH) // _MICROSECOND
        times = np.minimum(batch.transactions.commit_time, latest)
        return replace(kept, transactions=replace(batch.transactions, commit_time=times))

    def _kept(self, events: TableEvents) -> TableEvents:
        settings = self.tables.get(events.table)
        if settings is None:
            return events
        if settings.truncate == "ignore":
            events = _without_truncates(events)
        excluded = settings.exclude_columns
        if not excluded:
            return events
        rows, schema = without_columns(events.rows, events.schema, excluded)
        return replace(
            events, rows=rows, schema=schema, unfit=tuple(_without_values(event, excluded) for event in events.unfit)
        )


def without_columns(rows: pa.Table, schema: TableSchema, excluded: Collection[str]) -> tuple[pa.Table, TableSchema]:
    """Returns rows of a slice file, and their schema, without the excluded columns."""
    rows = rows.drop_columns([name for name in schema.names if name in excluded])
    if rows[ABSENT].null_count < rows.num_rows:
        place = rows.column_names.index(ABSENT)
        rows = rows.set_column(place, rows.schema.field(place), _without_names(rows[ABSENT], excluded))
    return rows, schema.without(excluded)


def _without_names(absent: pa.ChunkedArray, excluded: Collection[str]) -> pa.Array:
    """Returns the lists without these names; NULL for a list that has no others, as for a whole row."""
    lists = absent.combine_chunks()
    names = pc.list_flatten(lists)
    kept = pc.invert(pc.is_in(names, pa.array(list(excluded), pa.string())))
    parents = pc.list_parent_indices(lists).filter(kept)
    lengths = np.bincount(np.asarray(parents, dtype=np.int64), minlength=len(lists))
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), names.filter(kept), mask=pa.array(lengths == 0))


def _without_values(event: UnfitEvent, excluded: Collection[str]) -> UnfitEvent:
    return replace(event, payload={name: text for name, text in event.payload.items() if name not in excluded})


def _without_truncates(events: TableEvents) -> TableEvents:
    """Returns the events without truncates, for a table whose truncates have no effect in the lake."""
    kept = np.asarray(pc.not_equal(events.rows[OPERATION], Operation.TRUNCATE.value))
    if kept.all():
        return events
    log.warning("truncate ignored, as pipeline.yml says", table=str(events.table), truncates=int((~kept).sum()))
    return replace(
        events,
        rows=events.rows.filter(pa.array(kept)),
        commit_position=events.commit_position[kept],
        stream_partition=events.stream_partition[kept],
    )
