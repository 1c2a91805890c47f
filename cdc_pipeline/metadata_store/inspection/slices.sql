-- The newest slices.
SELECT *
FROM cdc.v_slice_history
WHERE CAST(:table AS text) IS NULL OR source_table = :table
ORDER BY source_table, number DESC
LIMIT coalesce(CAST(:limit AS bigint), 100);
