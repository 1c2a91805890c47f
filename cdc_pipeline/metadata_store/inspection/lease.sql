-- Who holds the lease of which table.
SELECT *
FROM cdc.v_lease
WHERE stream = :stream
  AND (CAST(:table AS text) IS NULL OR source_table = :table)
ORDER BY source_table
LIMIT CAST(:limit AS bigint);
