-- One row per boundary and table of its stream: the lake version that equals the source at the boundary.
-- Read together, the versions of one boundary are transaction-consistent. NULL: no lake version equals the source
-- there, because a claim has slices of both sides of the boundary, its slices are not applied yet, it lies before the
-- cutoff, the table was not read there, slices of that time are deleted, or rows are withheld. `applied_version` is the
-- same without regard to withheld rows.
CREATE VIEW cdc.v_boundary_vector AS
SELECT boundary.boundary_id,
       boundary.stream,
       boundary.position,
       CAST(left(boundary.position, 8) || '/' || right(boundary.position, 8) AS pg_lsn) AS position_lsn,
       boundary.commit_time,
       source.table_id,
       cdc.table_name(source.database_name, source.schema_name, source.table_name) AS source_table,
       CASE WHEN withheld.since_position <= boundary.position THEN NULL ELSE applied.version END AS lake_version,
       applied.version AS applied_version
FROM cdc.boundary
JOIN cdc.source_table AS source ON source.stream = boundary.stream
JOIN cdc.v_withheld AS withheld ON withheld.table_id = source.table_id
LEFT JOIN LATERAL (
    SELECT slice.number
    FROM cdc.slice
    WHERE slice.table_id = source.table_id AND slice.boundary_id <= boundary.boundary_id
    ORDER BY slice.boundary_id DESC, slice.number DESC
    LIMIT 1
) AS reached ON true
LEFT JOIN cdc.slice AS latest ON latest.table_id = source.table_id AND latest.number = reached.number
LEFT JOIN LATERAL (
    SELECT slice.number, slice.claim_id
    FROM cdc.slice
    WHERE slice.table_id = source.table_id AND slice.number > coalesce(reached.number, 0)
    ORDER BY slice.number
    LIMIT 1
) AS following ON true
LEFT JOIN LATERAL (
    SELECT snapshot.fence_number, snapshot.lake_version
    FROM cdc.snapshot
    WHERE snapshot.table_id = source.table_id AND snapshot.state = 'published'
    ORDER BY snapshot.finished_at DESC
    LIMIT 1
) AS published ON true
LEFT JOIN cdc.claim ON claim.claim_id = latest.claim_id
CROSS JOIN LATERAL (
    SELECT CASE
               WHEN source.cutoff_offset IS NULL OR boundary.position < source.cutoff_offset THEN NULL
               -- a stale table is not read any more, and neither is one that later cuts leave out
               WHEN source.state = 'stale' AND boundary.position > coalesce(source.halted_at, source.cutoff_offset)
                   THEN NULL
               WHEN boundary.position > greatest(source.cutoff_offset, source.followed_at) THEN NULL
               WHEN following.claim_id = latest.claim_id THEN NULL
               -- slices that are deleted may lie before the boundary
               WHEN coalesce(following.number, source.next_slice_number)
                   > greatest(coalesce(reached.number, 0), published.fence_number) + 1 THEN NULL
               WHEN latest.number IS NULL OR latest.number <= published.fence_number THEN published.lake_version
               WHEN latest.state = 'applied' THEN claim.lake_version
           END AS version
) AS applied;
