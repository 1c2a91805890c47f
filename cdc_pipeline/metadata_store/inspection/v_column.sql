-- One row per column that a table of the lake has or had: its name and type in the source, and since when.
-- Columns of the lake have the names of the source; a type of the source always gives the same type in the lake.
CREATE VIEW cdc.v_column AS
SELECT source.table_id,
       cdc.table_name(source.database_name, source.schema_name, source.table_name) AS source_table,
       given.definition ->> 0 AS "column",
       given.definition ->> 1 AS type,
       CAST(given.definition ->> 2 AS integer) AS number,
       bool_or(known.document -> 'key' ? (given.definition ->> 0)) AS is_id,
       min(known.first_offset) AS since_offset,
       bool_or(known.schema_id = source.schema_id) AS is_current,
       source.stream
FROM cdc.source_table AS source
JOIN cdc.table_schema AS known ON known.table_id = source.table_id
CROSS JOIN LATERAL jsonb_array_elements(known.document -> 'columns') AS given (definition)
GROUP BY source.table_id, given.definition ->> 0, given.definition ->> 1, given.definition ->> 2;
