-- One row per boundary and table of its stream: the lake version that equals the source at the boundary.
-- Read together, the versions of one boundary are transaction-consistent. NULL: no version of the lake equals it,
-- because a claim reached over it, or its slices are not applied yet, or it lies before the cutoff, or the table was
-- not followed there, or rows are withheld. `applied_version` is the same without regard to withheld rows.
CREATE VIEW cdc.v_boundary_vector AS
SELECT b.boundary_id,
       b.stream,
       b.position,
       CAST(left(b.position, 8) || '/' || right(b.position, 8) AS pg_lsn) AS position_lsn,
       b.commit_time,
       t.table_id,
       concat_ws('.', t.database_name, t.schema_name, t.table_name) AS source_table,
       CASE WHEN withheld.since_position <= b.position THEN NULL ELSE applied.version END AS lake_version,
       applied.version AS applied_version
FROM cdc.boundary AS b
JOIN cdc.source_table AS t ON t.stream = b.stream
JOIN cdc.v_withheld AS withheld ON withheld.table_id = t.table_id
LEFT JOIN LATERAL (
    SELECT s.number
    FROM cdc.slice AS s
    WHERE s.table_id = t.table_id AND s.boundary_id <= b.boundary_id
    ORDER BY s.boundary_id DESC, s.number DESC
    LIMIT 1
) AS reached ON true
LEFT JOIN LATERAL (
    SELECT s.number, s.state, s.claim_id
    FROM cdc.slice AS s
    WHERE s.table_id = t.table_id AND s.path IS NOT NULL AND s.number <= reached.number
    ORDER BY s.number DESC
    LIMIT 1
) AS latest ON true
LEFT JOIN LATERAL (
    SELECT s.claim_id
    FROM cdc.slice AS s
    WHERE s.table_id = t.table_id AND s.path IS NOT NULL AND s.number > coalesce(reached.number, 0)
    ORDER BY s.number
    LIMIT 1
) AS following ON true
LEFT JOIN LATERAL (
    SELECT p.fence_number, p.lake_version
    FROM cdc.snapshot AS p
    WHERE p.table_id = t.table_id AND p.state = 'published'
    ORDER BY p.finished_at DESC
    LIMIT 1
) AS published ON true
LEFT JOIN cdc.claim AS c ON c.claim_id = latest.claim_id
CROSS JOIN LATERAL (
    SELECT CASE
               WHEN t.cutoff_offset IS NULL OR b.position < t.cutoff_offset THEN NULL
               -- a stale table is not followed any more; nor is one that later cuts leave out
               WHEN t.state = 'stale' AND b.position > coalesce(t.halted_at, t.cutoff_offset) THEN NULL
               WHEN b.position > greatest(t.cutoff_offset, t.followed_at) THEN NULL
               WHEN following.claim_id = latest.claim_id THEN NULL
               WHEN latest.number IS NULL OR latest.number <= published.fence_number THEN published.lake_version
               WHEN latest.state = 'applied' THEN c.lake_version
           END AS version
) AS applied;
