-- Where the consumer stands in each stream partition.
SELECT *
FROM cdc.v_stream_partition
ORDER BY stream, stream_partition
LIMIT coalesce(CAST(:limit AS bigint), 100);
