"""SQL that finds rows which nobody needs any more, by kind, and deletes them in batches."""

from typing import Any

BATCH_ROWS = 1_000

_NEWEST_PUBLISHED = """
    n.snapshot_id = (SELECT p.snapshot_id FROM cdc.snapshot AS p
                     WHERE p.table_id = n.table_id AND p.state = 'published' ORDER BY p.finished_at DESC LIMIT 1)
    """
_STAYS = """
    s.boundary_id > :boundary_id OR (s.table_id, s.number) IN (
        SELECT k.table_id, k.number
        FROM jsonb_to_recordset(CAST(:kept AS jsonb)) AS k (table_id integer, number bigint))
    """
_SLICES = f"""
    SELECT s.table_id, s.number, coalesce(s.applied_at, s.registered_at) AS since, pg_column_size(s) AS bytes
    FROM cdc.slice AS s
    JOIN cdc.source_table AS t USING (table_id)
    WHERE t.stream = :stream AND s.boundary_id <= :boundary_id AND NOT ({_STAYS})
    """
_ENDED_SNAPSHOTS = """
    cdc.snapshot AS n
    JOIN cdc.source_table AS t USING (table_id)
    WHERE t.stream = :stream AND n.state IN ('published', 'failed', 'abandoned') AND n.finished_at < :history_before
    """

OLD_ROWS = {
    "damaged_slice": f"""
        SELECT d.table_id, d.number, d.last_seen_at AS since, pg_column_size(d) AS bytes
        FROM cdc.damaged_slice AS d JOIN ({_SLICES}) AS old USING (table_id, number)
        """,
    "slice": _SLICES,
    "boundary": f"""
        SELECT b.boundary_id, b.registered_at AS since, pg_column_size(b) AS bytes
        FROM cdc.boundary AS b
        WHERE b.stream = :stream AND b.boundary_id < :boundary_id AND b.position <> ALL (:positions)
          AND NOT EXISTS (SELECT FROM cdc.slice AS s WHERE s.boundary_id = b.boundary_id AND ({_STAYS}))
        """,
    # The newest claim of a table and those that left rows hidden are shown for as long as the table is there.
    "claim": f"""
        SELECT c.claim_id, c.finished_at AS since, pg_column_size(c) AS bytes
        FROM cdc.claim AS c
        JOIN cdc.source_table AS t USING (table_id)
        WHERE t.stream = :stream AND c.state <> 'claimed' AND c.finished_at < :history_before
          AND NOT (c.state = 'applied' AND c.rows_parked > 0)
          AND NOT EXISTS (SELECT FROM cdc.slice AS s WHERE s.claim_id = c.claim_id AND ({_STAYS}))
          AND EXISTS (SELECT FROM cdc.claim AS later
                      WHERE later.table_id = c.table_id
                        AND (later.first_number, later.started_at) > (c.first_number, c.started_at))
        """,
    # A store that is made anew finds events in quarantine again in the cut files that are kept, and rows of the
    # published snapshot beside its files: what was decided about those stays.
    "quarantine": f"""
        SELECT q.quarantine_id, q.decided_at AS since, pg_column_size(q) AS bytes
        FROM cdc.quarantine AS q
        JOIN cdc.source_table AS t USING (table_id)
        LEFT JOIN cdc.snapshot AS n ON n.snapshot_id = q.snapshot_id
        WHERE t.stream = :stream AND q.state IN ('replayed', 'dropped') AND q.decided_at < :quarantine_before
          AND CASE WHEN q.snapshot_id IS NULL
                   THEN split_part(coalesce(q.place, q.start_offset), '-', 1) COLLATE "C" <= :position
                   ELSE n.state IN ('published', 'failed', 'abandoned') AND NOT {_NEWEST_PUBLISHED} IS TRUE END
          AND NOT EXISTS (SELECT FROM cdc.slice AS s
                          WHERE s.table_id = q.table_id AND s.number = q.slice_number AND s.state = 'registered')
        """,
    "snapshot_task": f"""
        SELECT k.snapshot_id, k.kind, k.ordinal, n.finished_at AS since, pg_column_size(k) AS bytes
        FROM cdc.snapshot_task AS k JOIN (SELECT n.snapshot_id, n.finished_at FROM {_ENDED_SNAPSHOTS}) AS n
            USING (snapshot_id)
        """,
    "snapshot": f"""
        SELECT n.snapshot_id, n.finished_at AS since, pg_column_size(n) AS bytes
        FROM {_ENDED_SNAPSHOTS}
          AND NOT {_NEWEST_PUBLISHED} IS TRUE
          AND NOT EXISTS (SELECT FROM cdc.quarantine AS q WHERE q.snapshot_id = n.snapshot_id)
        """,
}
"""In the order in which they are deleted: what refers to others first. `since` when nobody needs the row."""
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
"""Parameters while every cut is needed."""
OF_CUTS = ("damaged_slice", "slice", "boundary")
"""What goes with the cut files, once the base of the chain is durable."""
_BATCH = "DELETE FROM cdc.{0} WHERE ({1}) IN (SELECT {1} FROM ({2}) AS old LIMIT {3})"
DELETE = {kind: _BATCH.format(kind, _KEYS[kind], rows, BATCH_ROWS) for kind, rows in OLD_ROWS.items()}
