-- One row per waiting slice whose file was found changed, truncated, exchanged or missing.
CREATE VIEW cdc.v_damaged_slice AS
SELECT damaged.table_id,
       cdc.table_name(source.database_name, source.schema_name, source.table_name) AS source_table,
       damaged.number,
       slice.path,
       damaged.found,
       damaged.expected,
       damaged.first_seen_at,
       damaged.last_seen_at,
       source.stream
FROM cdc.damaged_slice AS damaged
JOIN cdc.slice ON slice.table_id = damaged.table_id AND slice.number = damaged.number
JOIN cdc.source_table AS source ON source.table_id = damaged.table_id
WHERE slice.state = 'registered';
