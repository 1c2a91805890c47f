-- One row per source table: the number of source rows that the lake lacks or hides. `since_position`: the first cut
-- that the lake cannot equal because of them; '', which sorts before every position, if they include rows of the
-- published snapshot. A replayed event counts until its late slice is applied.
-- `rows_incomplete`: incomplete rows that claims since the snapshot left; later claims may have completed some of them.
CREATE VIEW cdc.v_withheld AS
SELECT source.table_id,
       source.stream,
       cdc.table_name(source.database_name, source.schema_name, source.table_name) AS source_table,
       waiting.events + replayed.events AS rows_withheld,
       (SELECT coalesce(sum(claim.rows_incomplete), 0)::bigint
        FROM cdc.claim
        WHERE claim.table_id = source.table_id AND claim.rows_incomplete > 0 AND claim.state = 'applied'
          AND claim.first_number > coalesce(published.fence_number, 0)
          -- a snapshot of exported files may be older than slices that were applied before it
          AND coalesce(claim.lake_version > published.lake_version, true)) AS rows_incomplete,
       least(waiting.since_position, replayed.since_position) AS since_position
FROM cdc.source_table AS source
LEFT JOIN LATERAL (
    SELECT snapshot.fence_number, snapshot.lake_version
    FROM cdc.snapshot
    WHERE snapshot.table_id = source.table_id AND snapshot.state = 'published'
    ORDER BY snapshot.finished_at DESC
    LIMIT 1
) AS published ON true
-- One pass over the events, however often a view that joins this one names its columns. Among places in the order of
-- "C", the first one has the first position: '-' sorts before all that a position contains.
CROSS JOIN LATERAL (
    SELECT count(*) AS events,
           CASE WHEN bool_or(event.snapshot_id IS NOT NULL) THEN ''
                ELSE split_part(min(event.place COLLATE "C"), '-', 1) COLLATE "C" END AS since_position
    FROM cdc.quarantine AS event
    LEFT JOIN cdc.snapshot ON snapshot.snapshot_id = event.snapshot_id
    WHERE event.table_id = source.table_id AND event.state = 'waiting'
      AND (event.snapshot_id IS NULL OR snapshot.state = 'published')
) AS waiting
CROSS JOIN LATERAL (
    SELECT count(*) AS events,
           CASE WHEN bool_or(event.snapshot_id IS NOT NULL) THEN ''
                ELSE split_part(min(event.place COLLATE "C"), '-', 1) COLLATE "C" END AS since_position
    FROM cdc.slice
    JOIN cdc.quarantine AS event
        ON event.table_id = slice.table_id AND event.slice_number = slice.number AND event.state = 'replayed'
    WHERE slice.table_id = source.table_id AND slice.late AND slice.state = 'registered'
) AS replayed;
