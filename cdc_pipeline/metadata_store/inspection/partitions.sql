-- Where the consumer stands in each stream partition.
SELECT *
FROM cdc.v_stream_partition
WHERE stream = :stream
ORDER BY stream, stream_partition
LIMIT CAST(:limit AS bigint);
