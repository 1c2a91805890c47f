-- Rows that the lake lacks because they cannot be applied, table by table.
SELECT *
FROM cdc.v_withheld
WHERE stream = :stream
  AND (CAST(:table AS text) IS NULL OR source_table = :table)
ORDER BY source_table
LIMIT CAST(:limit AS bigint);
