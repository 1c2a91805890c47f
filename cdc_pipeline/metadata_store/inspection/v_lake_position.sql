-- One row per source table: the lake's table equals the source as of this position and time.
-- That is the last boundary before the first slice with a file that the lake lacks, or the cutoff if that is later.
-- '~' orders behind every position.
CREATE VIEW cdc.v_lake_position AS
SELECT t.table_id,
       concat_ws('.', t.database_name, t.schema_name, t.table_name) AS source_table,
       t.stream,
       p.position,
       CAST(left(p.position, 8) || '/' || right(p.position, 8) AS pg_lsn) AS position_lsn,
       p.as_of,
       extract(epoch FROM clock_timestamp() - p.as_of) AS seconds_behind,
       coalesce(waiting.number, t.next_slice_number) - 1 AS applied_through
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
    SELECT b.position, b.commit_time
    FROM cdc.boundary AS b
    WHERE b.stream = t.stream AND b.position < coalesce(waiting.position, '~')
    ORDER BY b.position DESC
    LIMIT 1
) AS reached ON true
CROSS JOIN LATERAL (
    SELECT CASE WHEN reached.position >= t.cutoff_offset THEN reached.position ELSE t.cutoff_offset END AS position,
           CASE WHEN reached.position >= t.cutoff_offset THEN reached.commit_time ELSE t.cutoff_time END AS as_of
) AS p;
