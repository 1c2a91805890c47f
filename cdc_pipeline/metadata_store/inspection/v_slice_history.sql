-- One row per slice: what it holds, where its file lies, and what became of it.
-- An interval without events has no slice; older versions registered an empty one, without a path.
CREATE VIEW cdc.v_slice_history AS
SELECT s.table_id,
       concat_ws('.', t.database_name, t.schema_name, t.table_name) AS source_table,
       s.number,
       s.state,
       s.stream_partition,
       s.label_start,
       s.label_end,
       s.start_offset,
       s.end_offset,
       s.path,
       s.rows,
       s.size_bytes,
       s.key_changes,
       s.partial_rows,
       s.truncates,
       s.truncated_at,
       s.late,
       b.boundary_id,
       b.commit_time,
       s.registered_at,
       s.applied_at,
       extract(epoch FROM s.applied_at - b.commit_time) AS seconds_from_commit_to_lake,
       c.claim_id,
       c.lake_version,
       t.stream
FROM cdc.slice AS s
JOIN cdc.source_table AS t ON t.table_id = s.table_id
JOIN cdc.boundary AS b ON b.boundary_id = s.boundary_id
LEFT JOIN cdc.claim AS c ON c.claim_id = s.claim_id;
