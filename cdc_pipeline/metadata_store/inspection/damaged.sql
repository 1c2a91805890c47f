-- Slice files that differ from what was registered.
SELECT *
FROM cdc.v_damaged_slice
WHERE stream = :stream
  AND (CAST(:table AS text) IS NULL OR source_table = :table)
ORDER BY source_table, number
LIMIT CAST(:limit AS bigint);
