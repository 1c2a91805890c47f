-- Up to where each stream partition is registered.
SELECT *
FROM cdc.v_stream_partition
WHERE stream = :stream
ORDER BY stream, stream_partition
LIMIT CAST(:limit AS bigint);
