-- The lake version of each table at the newest boundaries.
SELECT *
FROM cdc.v_boundary_vector
WHERE stream = :stream
  AND (CAST(:table AS text) IS NULL OR source_table = :table)
ORDER BY boundary_id DESC, source_table
LIMIT CAST(:limit AS bigint);
