-- One row per event that could not be applied. Its values stay in cdc.quarantine: they are the source's.
CREATE VIEW cdc.v_quarantine AS
SELECT q.quarantine_id,
       q.table_id,
       concat_ws('.', t.database_name, t.schema_name, t.table_name) AS source_table,
       q.stream_partition,
       q.version,
       q.start_offset,
       q.end_offset,
       q.reason,
       q."column",
       q.state,
       q.created_at,
       q.snapshot_id,
       q.slice_number,
       q.decision,
       q.decided_at,
       t.stream
FROM cdc.quarantine AS q
JOIN cdc.source_table AS t ON t.table_id = q.table_id;
