-- The position and time as of which the lake equals the source.
SELECT *
FROM cdc.v_lake_position
WHERE stream = :stream
  AND (CAST(:table AS text) IS NULL OR source_table = :table)
ORDER BY source_table
LIMIT CAST(:limit AS bigint);
