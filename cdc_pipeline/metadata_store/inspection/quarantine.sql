-- Events that were kept aside.
SELECT *
FROM cdc.v_quarantine
WHERE CAST(:table AS text) IS NULL OR source_table = :table
ORDER BY quarantine_id DESC
LIMIT coalesce(CAST(:limit AS bigint), 100);
