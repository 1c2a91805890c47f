"""Turns change events of one table, as texts of a database, into rows of a slice file and events that do not fit."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.record import Operation, TableName, TableSchema
from cdc_pipeline.sources.event_texts import EventTexts, Misfit, payload, typed_rows
from cdc_pipeline.sources.partitioning import stream_partition
from cdc_pipeline.sources.protocol import Integers, TableEvents, UnfitEvent


def table_events(
    texts: EventTexts, commit_position: Integers, *, table: TableName, schema: TableSchema, stream_partitions: int
) -> TableEvents:
    """Returns the events in their order. Those that cannot become a row are in `unfit`, whole.

    An event belongs to the stream partition of its id, in a keyless table to that of its version. A truncate has no id
    and belongs to the stream partition 0.
    """
    rows, found = typed_rows(texts, schema)
    truncates = np.asarray(pc.equal(texts.operation, Operation.TRUNCATE.value))
    by_id = stream_partition([texts.texts[name] for name in schema.key] or [texts.version], stream_partitions)
    partitions = np.where(truncates, 0, by_id)
    misfits = [misfit for misfit in found if not truncates[misfit.row]]
    fits = np.ones(len(commit_position), dtype=np.bool_)
    fits[[misfit.row for misfit in misfits]] = False
    return TableEvents(
        table=table,
        schema=schema,
        rows=rows if fits.all() else rows.filter(pa.array(fits)),
        commit_position=commit_position[fits],
        stream_partition=partitions[fits],
        unfit=tuple(_unfit(texts, misfit, partitions, commit_position) for misfit in misfits),
    )


def _unfit(events: EventTexts, misfit: Misfit, partitions: Integers, positions: Integers) -> UnfitEvent:
    return UnfitEvent(
        stream_partition=int(partitions[misfit.row]),
        version=events.version[misfit.row].as_py(),
        commit_position=int(positions[misfit.row]),
        column=misfit.column,
        reason=misfit.reason,
        payload=payload(events, misfit.row),
    )
