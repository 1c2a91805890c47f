"""SQL that finds rows which are no longer needed, by kind, and deletes them in batches."""

from typing import Any

from cdc_pipeline.metadata_store.database import BATCH_ROWS

_NEWEST_PUBLISHED = """
    snapshot.snapshot_id = (
        SELECT published.snapshot_id FROM cdc.snapshot AS published
        WHERE published.table_id = snapshot.table_id AND published.state = 'published'
        ORDER BY published.finished_at DESC LIMIT 1)
    """
_STAYS = """
    slice.boundary_id > :boundary_id OR (slice.table_id, slice.number) IN (
        SELECT kept.table_id, kept.number
        FROM jsonb_to_recordset(CAST(:kept AS jsonb)) AS kept (table_id integer, number bigint))
    """
_SLICES = f"""
    SELECT slice.table_id, slice.number, coalesce(slice.applied_at, slice.registered_at) AS since,
           pg_column_size(slice) AS bytes
    FROM cdc.slice
    JOIN cdc.source_table AS source USING (table_id)
    WHERE source.stream = :stream AND slice.boundary_id <= :boundary_id AND NOT ({_STAYS})
    """
_ENDED_SNAPSHOTS = """
    cdc.snapshot
    JOIN cdc.source_table AS source USING (table_id)
    WHERE source.stream = :stream AND snapshot.state IN ('published', 'failed', 'abandoned')
      AND snapshot.finished_at < :history_before
    """

OLD_ROWS = {
    "damaged_slice": f"""
        SELECT damaged.table_id, damaged.number, damaged.last_seen_at AS since, pg_column_size(damaged) AS bytes
        FROM cdc.damaged_slice AS damaged JOIN ({_SLICES}) AS old USING (table_id, number)
        """,
    "slice": _SLICES,
    "boundary": f"""
        SELECT boundary.boundary_id, boundary.registered_at AS since, pg_column_size(boundary) AS bytes
        FROM cdc.boundary
        WHERE boundary.stream = :stream AND boundary.boundary_id < :boundary_id
          AND boundary.position <> ALL (:positions)
          AND NOT EXISTS (SELECT FROM cdc.slice WHERE slice.boundary_id = boundary.boundary_id AND ({_STAYS}))
        """,
    # The newest claim of a table stays, and so do claims that left incomplete rows since its snapshot: views show them.
    "claim": f"""
        SELECT claim.claim_id, claim.finished_at AS since, pg_column_size(claim) AS bytes
        FROM cdc.claim
        JOIN cdc.source_table AS source USING (table_id)
        WHERE source.stream = :stream AND claim.state <> 'claimed' AND claim.finished_at < :history_before
          AND (claim.state <> 'applied' OR claim.rows_incomplete = 0 OR EXISTS (
              SELECT FROM cdc.snapshot WHERE snapshot.table_id = claim.table_id AND {_NEWEST_PUBLISHED}
              AND (claim.first_number <= snapshot.fence_number OR claim.lake_version <= snapshot.lake_version)))
          AND NOT EXISTS (SELECT FROM cdc.slice WHERE slice.claim_id = claim.claim_id AND ({_STAYS}))
          AND EXISTS (SELECT FROM cdc.claim AS later
                      WHERE later.table_id = claim.table_id AND later.state <> 'rewound'
                        AND (later.first_number, later.started_at) > (claim.first_number, claim.started_at))
        """,
    # A rebuild reads quarantined events again from the remaining cut files, and rows of the published snapshot from
    # its files. So the decisions about those events stay.
    "quarantine": f"""
        SELECT event.quarantine_id, event.decided_at AS since, pg_column_size(event) AS bytes
        FROM cdc.quarantine AS event
        JOIN cdc.source_table AS source USING (table_id)
        LEFT JOIN cdc.snapshot ON snapshot.snapshot_id = event.snapshot_id
        WHERE source.stream = :stream AND event.state IN ('replayed', 'dropped')
          AND event.decided_at < :quarantine_before
          AND CASE WHEN event.snapshot_id IS NULL
                   THEN split_part(event.place, '-', 1) COLLATE "C" <= :position
                   ELSE snapshot.state IN ('published', 'failed', 'abandoned') AND NOT {_NEWEST_PUBLISHED} IS TRUE END
          AND NOT EXISTS (SELECT FROM cdc.slice
                          WHERE slice.table_id = event.table_id AND slice.number = event.slice_number
                            AND slice.state = 'registered')
        """,
    "snapshot_task": f"""
        SELECT task.snapshot_id, task.kind, task.ordinal, ended.finished_at AS since, pg_column_size(task) AS bytes
        FROM cdc.snapshot_task AS task
        JOIN (SELECT snapshot.snapshot_id, snapshot.finished_at FROM {_ENDED_SNAPSHOTS}) AS ended USING (snapshot_id)
        """,
    "snapshot": f"""
        SELECT snapshot.snapshot_id, snapshot.finished_at AS since, pg_column_size(snapshot) AS bytes
        FROM {_ENDED_SNAPSHOTS}
          AND NOT {_NEWEST_PUBLISHED} IS TRUE
          AND NOT EXISTS (SELECT FROM cdc.quarantine AS event WHERE event.snapshot_id = snapshot.snapshot_id)
        """,
}
"""By kind, in the order of deletion: rows that refer to others first. `since`: from when the row is not needed."""
_KEYS = {
    "damaged_slice": "table_id, number",
    "slice": "table_id, number",
    "boundary": "boundary_id",
    "claim": "claim_id",
    "quarantine": "quarantine_id",
    "snapshot_task": "snapshot_id, kind, ordinal",
    "snapshot": "snapshot_id",
}
NOTHING_FORGOTTEN: dict[str, Any] = {"boundary_id": 0, "position": "", "kept": "[]", "positions": []}
"""Parameters for a stream of which every cut is needed."""
OF_CUTS = ("damaged_slice", "slice", "boundary")
"""Kinds that are deleted together with cut files, once the base of the chain is durable."""
_BATCH = "DELETE FROM cdc.{0} WHERE ({1}) IN (SELECT {1} FROM ({2}) AS old LIMIT {3})"
DELETE = {kind: _BATCH.format(kind, _KEYS[kind], rows, BATCH_ROWS) for kind, rows in OLD_ROWS.items()}
