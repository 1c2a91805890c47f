-- One row per quarantined event. Its values belong to the source's users, so only cdc.quarantine has them.
-- `start_offset` to `end_offset`: the range of the slice in which the event came.
CREATE VIEW cdc.v_quarantine AS
SELECT event.quarantine_id,
       event.table_id,
       cdc.table_name(source.database_name, source.schema_name, source.table_name) AS source_table,
       event.stream_partition,
       event.version,
       event.start_offset,
       event.end_offset,
       event.reason,
       event."column",
       event.state,
       event.created_at,
       event.snapshot_id,
       event.slice_number,
       event.decision,
       event.decided_at,
       source.stream
FROM cdc.quarantine AS event
JOIN cdc.source_table AS source ON source.table_id = event.table_id;
