-- One row per stream partition: everything before next_offset is registered.
CREATE VIEW cdc.v_stream_partition AS
SELECT p.stream,
       p.stream_partition,
       p.next_offset,
       CAST(left(p.next_offset, 8) || '/' || right(p.next_offset, 8) AS pg_lsn) AS next_lsn,
       p.watermark,
       extract(epoch FROM clock_timestamp() - p.watermark) AS seconds_behind,
       p.label_start,
       p.label_end,
       p.assignment_owner,
       p.assignment_epoch,
       p.alarm,
       s.source_system_identifier,
       s.source_timeline,
       s.slot
FROM cdc.stream_partition AS p
JOIN cdc.stream AS s ON s.name = p.stream;
