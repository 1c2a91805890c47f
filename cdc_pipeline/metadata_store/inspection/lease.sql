-- Who holds the lease of which table.
SELECT *
FROM cdc.v_lease
WHERE CAST(:table AS text) IS NULL OR source_table = :table
ORDER BY source_table
LIMIT coalesce(CAST(:limit AS bigint), 100);
