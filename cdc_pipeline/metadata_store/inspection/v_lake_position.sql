-- One row per source table: the last position and time as of which the lake's table is known to equal the source. That
-- is the last boundary before the first slice that waits and before the first withheld row, but not behind the last
-- cut that read the table. It is the cutoff if that is later; a table that began empty, or from files as of the start,
-- has no time before its first boundary. `reason`: what keeps the position from rising.
CREATE VIEW cdc.v_lake_position AS
SELECT source.table_id,
       cdc.table_name(source.database_name, source.schema_name, source.table_name) AS source_table,
       source.stream,
       equal.position,
       CAST(left(equal.position, 8) || '/' || right(equal.position, 8) AS pg_lsn) AS position_lsn,
       equal.as_of,
       -- without a time, a table is behind since its registration
       extract(epoch FROM clock_timestamp() - coalesce(equal.as_of, source.registered_at)) AS seconds_behind,
       coalesce(waiting.number, source.next_slice_number) - 1 AS applied_through,
       nullif(concat_ws('; ',
           (SELECT 'the stream stopped: ' || max(part.alarm)
            FROM cdc.stream_partition AS part
            WHERE part.stream = source.stream
              AND NOT (part.last_position ? 'ended') AND part.last_position ->> 'partition' IS NULL),
           shared.held_back,
           CASE WHEN source.state = 'stale' OR source.snapshot_wanted
                THEN coalesce(source.state_reason, 'it asks for a new snapshot')
                WHEN source.state = 'snapshotting' THEN 'its first snapshot is being taken'
                WHEN source.cutoff_offset IS NULL THEN 'it has no snapshot yet' END,
           CASE WHEN source.state = 'stale' AND EXISTS (
                    SELECT FROM cdc.snapshot
                    WHERE snapshot.table_id = source.table_id
                      AND snapshot.state NOT IN ('published', 'failed', 'abandoned'))
                THEN 'a new snapshot is being taken' END,
           CASE WHEN source.state <> 'stale' THEN coalesce(
               (SELECT 'it failed ' || failing.failures || ' times in a row since '
                       || to_char(failing.failing_since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || 'Z: '
                       || failing.error
                FROM cdc.failing_table AS failing WHERE failing.table_id = source.table_id),
               CASE WHEN source.state = 'parked' THEN source.state_reason END) END,
           CASE WHEN source.state <> 'stale' AND last.position > followed.position
                THEN 'it is not read any more: the stream goes on without it' END,
           CASE WHEN withheld.since_position IS NOT NULL
                THEN 'rows of it wait in quarantine' END
       ), '') AS reason
FROM cdc.source_table AS source
LEFT JOIN LATERAL (
    SELECT slice.number, boundary.position
    FROM cdc.slice
    JOIN cdc.boundary ON boundary.boundary_id = slice.boundary_id
    WHERE slice.table_id = source.table_id AND slice.state = 'registered'
    ORDER BY slice.number
    LIMIT 1
) AS waiting ON true
LEFT JOIN LATERAL (
    SELECT boundary.position
    FROM cdc.boundary
    WHERE boundary.stream = source.stream
    ORDER BY boundary.position DESC
    LIMIT 1
) AS last ON true
CROSS JOIN LATERAL (SELECT greatest(source.followed_at, source.cutoff_offset) AS position) AS followed
CROSS JOIN LATERAL (
    SELECT CASE WHEN source.state = 'stale' OR source.snapshot_wanted
                THEN coalesce(source.halted_at, source.cutoff_offset)
                ELSE source.halted_at END AS position
) AS halted
JOIN cdc.v_withheld AS withheld ON withheld.table_id = source.table_id
LEFT JOIN LATERAL (
    SELECT boundary.position, boundary.commit_time
    FROM cdc.boundary
    WHERE boundary.stream = source.stream
      AND boundary.position < coalesce(least(waiting.position, withheld.since_position), '~')
      AND boundary.position <= least(halted.position, followed.position)
    ORDER BY boundary.position DESC
    LIMIT 1
) AS reached ON true
CROSS JOIN LATERAL (
    -- where consumers share a stream: the partitions that had events of this table, or none of any table yet
    SELECT min(part.watermark) AS watermark,
           string_agg(part.partition || ' is not read: ' || part.held_back, '; ' ORDER BY part.stream_partition)
               AS held_back
    FROM cdc.v_stream_partition AS part
    JOIN cdc.stream_partition AS known USING (stream, stream_partition)
    WHERE part.stream = source.stream AND part.partition IS NOT NULL
      AND (known.last_position ? cdc.table_name(source.database_name, source.schema_name, source.table_name)
           OR known.last_position - '{partition,topic,since,stream,file}'::text[] = '{}')
) AS shared
CROSS JOIN LATERAL (
    -- waiting slices of intervals that ended before the last boundary, by a consumer that was behind
    SELECT min(slice.label_start) AS label_start
    FROM cdc.slice
    WHERE shared.watermark IS NOT NULL
      AND slice.table_id = source.table_id AND slice.state = 'registered' AND NOT slice.late
      AND slice.label_end <= reached.commit_time
) AS older
CROSS JOIN LATERAL (
    -- The time of a table that began empty ('') or from files as of the start ('0') is when that was done or written,
    -- and events that wait may be older.
    SELECT CASE WHEN source.cutoff_version NOT IN ('', '0') THEN source.cutoff_time END AS at
) AS begun
CROSS JOIN LATERAL (
    SELECT CASE WHEN withheld.since_position <= source.cutoff_offset THEN NULL
                WHEN reached.position >= source.cutoff_offset THEN reached.position
                ELSE source.cutoff_offset END AS position,
           CASE WHEN withheld.since_position <= source.cutoff_offset THEN NULL
                WHEN reached.position >= source.cutoff_offset
                -- a boundary is of one consumer; another one may be behind it, or may have been until it registered
                THEN greatest(least(reached.commit_time, shared.watermark, older.label_start), begun.at)
                ELSE begun.at END AS as_of
) AS equal;
