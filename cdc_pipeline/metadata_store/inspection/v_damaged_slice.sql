-- One row per registered slice whose file was found changed, cut off, swapped or gone, until the lake holds the slice.
CREATE VIEW cdc.v_damaged_slice AS
SELECT d.table_id,
       concat_ws('.', t.database_name, t.schema_name, t.table_name) AS source_table,
       d.number,
       s.path,
       d.found,
       d.expected,
       d.first_seen_at,
       d.last_seen_at,
       t.stream
FROM cdc.damaged_slice AS d
JOIN cdc.slice AS s ON s.table_id = d.table_id AND s.number = d.number
JOIN cdc.source_table AS t ON t.table_id = d.table_id
WHERE s.state = 'registered';
