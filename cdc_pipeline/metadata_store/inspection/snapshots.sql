-- How far the snapshots are.
SELECT *
FROM cdc.v_snapshot_progress
WHERE stream = :stream
  AND (CAST(:table AS text) IS NULL OR source_table = :table)
ORDER BY started_at DESC, kind
LIMIT CAST(:limit AS bigint);
