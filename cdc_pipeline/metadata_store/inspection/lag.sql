-- How far the lake is behind, table by table.
SELECT *
FROM cdc.v_table_lag
WHERE CAST(:table AS text) IS NULL OR source_table = :table
ORDER BY source_table
LIMIT coalesce(CAST(:limit AS bigint), 100);
