-- The newest claims.
SELECT *
FROM cdc.v_claim_history
WHERE CAST(:table AS text) IS NULL OR source_table = :table
ORDER BY started_at DESC
LIMIT coalesce(CAST(:limit AS bigint), 100);
