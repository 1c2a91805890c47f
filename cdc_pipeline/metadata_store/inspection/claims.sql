-- The newest claims.
SELECT *
FROM cdc.v_claim_history
WHERE stream = :stream
  AND (CAST(:table AS text) IS NULL OR source_table = :table)
ORDER BY started_at DESC
LIMIT CAST(:limit AS bigint);
