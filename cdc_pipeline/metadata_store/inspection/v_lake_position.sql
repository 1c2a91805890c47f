-- One row per source table: the lake's table equals the source as of this position and time, and not later.
-- That is the last boundary before the first slice with a file that the lake lacks and before the first withheld row,
-- as far as the table was followed, or the cutoff if that is later. `reason` says in words what holds it there.
-- '~' orders behind every position.
CREATE VIEW cdc.v_lake_position AS
SELECT t.table_id,
       concat_ws('.', t.database_name, t.schema_name, t.table_name) AS source_table,
       t.stream,
       p.position,
       CAST(left(p.position, 8) || '/' || right(p.position, 8) AS pg_lsn) AS position_lsn,
       p.as_of,
       -- before its snapshot a table is behind since it was registered
       extract(epoch FROM clock_timestamp() - coalesce(p.as_of, t.registered_at)) AS seconds_behind,
       coalesce(waiting.number, t.next_slice_number) - 1 AS applied_through,
       nullif(concat_ws('; ',
           (SELECT 'the stream stopped: ' || max(sp.alarm) FROM cdc.stream_partition AS sp WHERE sp.stream = t.stream),
           CASE WHEN t.state = 'stale' OR t.snapshot_wanted
                THEN coalesce(t.parked_reason, 'it asks for a new snapshot')
                WHEN t.state = 'snapshotting' THEN 'its first snapshot is being taken'
                WHEN t.cutoff_offset IS NULL THEN 'it has no snapshot yet' END,
           CASE WHEN t.state = 'stale' AND EXISTS (
                    SELECT FROM cdc.snapshot AS n
                    WHERE n.table_id = t.table_id AND n.state NOT IN ('published', 'failed', 'abandoned'))
                THEN 'a new snapshot is being taken' END,
           CASE WHEN t.state <> 'stale' THEN coalesce(
               (SELECT 'it failed ' || f.failures || ' times in a row since '
                       || to_char(f.failing_since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || 'Z: ' || f.error
                FROM cdc.failing_table AS f WHERE f.table_id = t.table_id),
               CASE WHEN t.state = 'parked' THEN t.parked_reason END) END,
           CASE WHEN t.state <> 'stale' AND last.position > followed.position
                THEN 'it is not read any more: the stream goes on without it' END,
           CASE WHEN withheld.since_position IS NOT NULL
                THEN 'rows of it wait in quarantine' END
       ), '') AS reason
FROM cdc.source_table AS t
LEFT JOIN LATERAL (
    SELECT s.number, b.position
    FROM cdc.slice AS s
    JOIN cdc.boundary AS b ON b.boundary_id = s.boundary_id
    WHERE s.table_id = t.table_id AND s.state = 'registered' AND s.path IS NOT NULL
    ORDER BY s.number
    LIMIT 1
) AS waiting ON true
LEFT JOIN LATERAL (
    SELECT b.position FROM cdc.boundary AS b WHERE b.stream = t.stream ORDER BY b.position DESC LIMIT 1
) AS last ON true
CROSS JOIN LATERAL (SELECT greatest(t.followed_at, t.cutoff_offset) AS position) AS followed
CROSS JOIN LATERAL (
    SELECT CASE WHEN t.state = 'stale' OR t.snapshot_wanted THEN coalesce(t.halted_at, t.cutoff_offset)
                ELSE t.halted_at END AS position
) AS halted
JOIN cdc.v_withheld AS withheld ON withheld.table_id = t.table_id
LEFT JOIN LATERAL (
    SELECT b.position, b.commit_time
    FROM cdc.boundary AS b
    WHERE b.stream = t.stream
      AND b.position < coalesce(least(waiting.position, withheld.since_position), '~')
      AND b.position <= least(halted.position, followed.position)
    ORDER BY b.position DESC
    LIMIT 1
) AS reached ON true
CROSS JOIN LATERAL (
    SELECT CASE WHEN withheld.since_position <= t.cutoff_offset THEN NULL
                WHEN reached.position >= t.cutoff_offset THEN reached.position
                ELSE t.cutoff_offset END AS position,
           CASE WHEN withheld.since_position <= t.cutoff_offset THEN NULL
                WHEN reached.position >= t.cutoff_offset THEN reached.commit_time
                ELSE t.cutoff_time END AS as_of
) AS p;
