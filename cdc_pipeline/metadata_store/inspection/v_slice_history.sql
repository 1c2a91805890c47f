-- One row per slice: its content, the path of its file, and its state. A cut without events of a table has no slice of
-- it. `start_offset` to `end_offset`: its range of the stream partition. `key_changes`: its events that change the id.
-- `partial_rows`: those that leave values out. `truncated_at`: the version of its last truncate. `registered_at`: when
-- it got its number. `claim_id`: the claim that brought it into the lake.
CREATE VIEW cdc.v_slice_history AS
SELECT slice.table_id,
       cdc.table_name(source.database_name, source.schema_name, source.table_name) AS source_table,
       slice.number,
       slice.state,
       slice.stream_partition,
       slice.label_start,
       slice.label_end,
       slice.start_offset,
       slice.end_offset,
       slice.path,
       slice.rows,
       slice.size_bytes,
       slice.key_changes,
       slice.partial_rows,
       slice.truncates,
       slice.truncated_at,
       slice.late,
       boundary.boundary_id,
       boundary.commit_time,
       slice.registered_at,
       slice.applied_at,
       extract(epoch FROM slice.applied_at - boundary.commit_time) AS seconds_from_commit_to_lake,
       claim.claim_id,
       claim.lake_version,
       source.stream
FROM cdc.slice
JOIN cdc.source_table AS source ON source.table_id = slice.table_id
JOIN cdc.boundary ON boundary.boundary_id = slice.boundary_id
LEFT JOIN cdc.claim ON claim.claim_id = slice.claim_id;
