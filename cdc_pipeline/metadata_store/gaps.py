"""A table that a cut goes on with although earlier cuts of its stream left it out: what came in between is lost."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, text

from cdc_pipeline.metadata_store.stale_tables import mark_stale

_FOLLOWED = text("""
    SELECT t.table_id, part.number AS stream_partition,
           greatest(coalesce(newest.end_offset, active.cutoff_offset),
                    -- the cutoff of a table of files is no place to which anybody read it
                    nullif(t.cutoff_offset, '0000000000000000')) AS followed
    FROM cdc.source_table AS t
    CROSS JOIN unnest(CAST(:partitions AS integer[])) AS part (number)
    LEFT JOIN LATERAL (
        SELECT s.end_offset
        FROM cdc.slice AS s
        WHERE s.table_id = t.table_id AND s.stream_partition = part.number AND NOT s.late
        ORDER BY s.boundary_id DESC
        LIMIT 1
    ) AS newest ON true
    LEFT JOIN cdc.snapshot AS active
        ON active.table_id = t.table_id AND active.state NOT IN ('published', 'failed', 'abandoned')
    WHERE t.table_id = ANY (:tables) AND t.state NOT IN ('registered', 'stale')
    """).bindparams(bindparam("tables"), bindparam("partitions"))


def mark_gaps(connection: Connection, slices: Iterable[Mapping[str, Any]]) -> None:
    """Before the slices of a cut are inserted: each has to begin where the one before it ended.

    A table of which that is not so becomes stale, unless nothing of it is in the lake yet.
    """
    starts = {(new["table_id"], new["stream_partition"]): new["start_offset"] for new in slices}
    tables, partitions = sorted({table for table, _ in starts}), sorted({part for _, part in starts})
    for row in connection.execute(_FOLLOWED, {"tables": tables, "partitions": partitions}).all():
        start = starts.get((row.table_id, row.stream_partition))
        if start is not None and row.followed is not None and row.followed < start:
            reason = f"its changes from {row.followed} to {start} were not read: the stream went on without it"
            mark_stale(connection, [row.table_id], f"{reason}; run cdc snapshot on it")
