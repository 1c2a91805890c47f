-- The lineage of columns: which column of the source, of which type, each column of the lake comes from.
SELECT *
FROM cdc.v_column
WHERE stream = :stream
  AND (CAST(:table AS text) IS NULL OR source_table = :table)
ORDER BY source_table, number NULLS LAST, "column", since_offset
LIMIT CAST(:limit AS bigint);
