-- The newest slices, of all tables.
SELECT *
FROM cdc.v_slice_history
WHERE stream = :stream
  AND (CAST(:table AS text) IS NULL OR source_table = :table)
ORDER BY boundary_id DESC, source_table, number DESC
LIMIT CAST(:limit AS bigint);
