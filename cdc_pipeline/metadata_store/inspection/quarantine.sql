-- Quarantined events, and what was decided about them.
SELECT *
FROM cdc.v_quarantine
WHERE stream = :stream
  AND (CAST(:table AS text) IS NULL OR source_table = :table)
  AND (CAST(:state AS text) IS NULL OR state = :state)
ORDER BY quarantine_id DESC
LIMIT CAST(:limit AS bigint);
