"""A table that a cut goes on with although earlier cuts of its stream left it out: what came in between is lost."""

from collections.abc import Mapping

from sqlalchemy import Connection, func, select, text

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.ledger.cut import Cut
from cdc_pipeline.metadata_store.ledger.stale_tables import mark_stale

_FOLLOWED = text("""
    SELECT t.table_id,
           greatest(coalesce(t.followed_at, active.cutoff_offset),
                    -- the cutoff of a table of files is no place to which anybody read it
                    nullif(t.cutoff_offset, '0000000000000000')) AS followed
    FROM cdc.source_table AS t
    LEFT JOIN cdc.snapshot AS active
        ON active.table_id = t.table_id AND active.state NOT IN ('published', 'failed', 'abandoned')
    WHERE t.table_id = ANY (:tables) AND t.state NOT IN ('registered', 'stale')
    ORDER BY t.table_id
    """)


def mark_gaps(connection: Connection, cut: Cut, next_offsets: Mapping[int, str | None]) -> None:
    """Before the cut is registered. `next_offsets`: by stream partition, as they are registered.

    A table that was read only up to a position before the cut becomes stale, unless nothing of it is in the lake yet.
    """
    start = _begins_at(connection, cut, next_offsets)
    for row in connection.execute(_FOLLOWED, {"tables": list(cut.tables)}).all():
        if row.followed is not None and row.followed < start:
            reason = f"its changes from {row.followed} to {start} were not read: the stream went on without it"
            mark_stale(connection, [row.table_id], f"{reason}; run cdc snapshot on it")


def _begins_at(connection: Connection, cut: Cut, next_offsets: Mapping[int, str | None]) -> str:
    """The position at which the cut begins. A cut file of older code says it only where the stream began again."""
    if cut.start is not None:
        return cut.start
    began_again = [
        part.start_offset
        for part in cut.partitions
        if part.start_offset > (next_offsets[part.stream_partition] or part.start_offset)
    ]
    boundary = models.boundary.c
    last = connection.scalar(select(func.max(boundary.position)).where(boundary.stream == cut.stream))
    return max([last or "", *began_again])
