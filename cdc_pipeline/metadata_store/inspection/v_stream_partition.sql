-- One row per stream partition: everything before next_offset is registered. `log_*`: what was seen last, at
-- `log_seen_at`, of the log that the slot keeps back on the source; the slot is lost when `log_bytes_left` more are
-- written, NULL: never. `log_warning` says why somebody has to act.
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
       s.slot,
       l.wal_status AS log_status,
       l.retained_bytes AS log_retained_bytes,
       l.most_bytes AS log_most_bytes,
       l.bytes_left AS log_bytes_left,
       l.warning AS log_warning,
       l.seen_at AS log_seen_at
FROM cdc.stream_partition AS p
JOIN cdc.stream AS s ON s.name = p.stream
LEFT JOIN cdc.source_log AS l ON l.stream = p.stream;
