-- One row per stream partition of which more can come: everything before `next_offset` is registered. `log_*`: the log
-- that the slot retains on the source, as last seen at `log_seen_at`. The slot is lost when `log_bytes_left` more
-- bytes are written; NULL: never. `log_warning`: why somebody has to act. `partition`: its name in the source.
-- `held_back`: why nothing of it is registered now; NULL where a consumer reads it, where one consumer reads the whole
-- stream, and while none runs, unless its last one was killed. `assignment_epoch` rises each time a consumer takes the
-- partition. `source_system_identifier`, `source_timeline` and `slot`: which server, timeline of it and slot the stream
-- is read from. Without a database they are the kind or cluster, 0, and how events are ordered.
CREATE VIEW cdc.v_stream_partition AS
SELECT part.stream,
       part.stream_partition,
       part.next_offset,
       CAST(left(part.next_offset, 8) || '/' || right(part.next_offset, 8) AS pg_lsn) AS next_lsn,
       part.watermark,
       extract(epoch FROM clock_timestamp() - part.watermark) AS seconds_behind,
       part.label_start,
       part.label_end,
       part.assignment_owner,
       part.assignment_epoch,
       part.alarm,
       stream.source_system_identifier,
       stream.source_timeline,
       stream.slot,
       log.wal_status AS log_status,
       log.retained_bytes AS log_retained_bytes,
       log.most_bytes AS log_most_bytes,
       log.bytes_left AS log_bytes_left,
       log.warning AS log_warning,
       log.seen_at AS log_seen_at,
       part.last_position ->> 'partition' AS partition,
       coalesce(part.alarm,
           CASE WHEN NOT EXISTS (SELECT FROM cdc.consumer WHERE consumer.stream = part.stream) THEN NULL
                WHEN part.assignment_owner IS NULL THEN 'no consumer reads it'
                WHEN NOT EXISTS (
                    SELECT FROM cdc.consumer
                    WHERE consumer.stream = part.stream AND consumer.owner = part.assignment_owner
                      AND consumer.expires_at > clock_timestamp())
                    -- an owner that is not listed may read alone, while only dead ones are
                    AND EXISTS (
                        SELECT FROM cdc.consumer
                        WHERE consumer.stream = part.stream
                          AND (consumer.owner = part.assignment_owner OR consumer.expires_at > clock_timestamp()))
                THEN 'its consumer ' || part.assignment_owner || ' is gone' END) AS held_back
FROM cdc.stream_partition AS part
JOIN cdc.stream ON stream.name = part.stream
LEFT JOIN cdc.source_log AS log ON log.stream = part.stream
WHERE NOT (part.last_position ? 'ended');
