-- How far the lake is behind, table by table.
SELECT *
FROM cdc.v_table_lag
WHERE stream = :stream
  AND (CAST(:table AS text) IS NULL OR source_table = :table)
ORDER BY source_table
LIMIT CAST(:limit AS bigint);
