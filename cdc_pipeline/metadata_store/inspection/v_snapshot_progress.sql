-- One row per snapshot and kind of task; one row without a kind while a snapshot has no tasks.
CREATE VIEW cdc.v_snapshot_progress AS
SELECT n.snapshot_id,
       n.table_id,
       concat_ws('.', t.database_name, t.schema_name, t.table_name) AS source_table,
       n.state,
       n.cutoff_offset,
       CAST(left(n.cutoff_offset, 8) || '/' || right(n.cutoff_offset, 8) AS pg_lsn) AS cutoff_lsn,
       n.cutoff_time,
       k.kind,
       coalesce(k.waiting, 0) AS tasks_waiting,
       coalesce(k.claimed, 0) AS tasks_claimed,
       coalesce(k.done, 0) AS tasks_done,
       coalesce(k.failed, 0) AS tasks_failed,
       coalesce(k.rows, 0) AS rows_done,
       coalesce(k.bytes, 0) AS bytes_done,
       k.attempts,
       n.rows AS rows_published,
       n.files AS files_published,
       n.lake_version,
       coalesce(n.error, k.error) AS error,
       n.started_at,
       n.finished_at,
       t.stream,
       (SELECT count(*) FROM cdc.quarantine AS q
        WHERE q.snapshot_id = n.snapshot_id AND q.state = 'waiting') AS rows_withheld
FROM cdc.snapshot AS n
JOIN cdc.source_table AS t ON t.table_id = n.table_id
LEFT JOIN LATERAL (
    SELECT w.kind,
           count(*) FILTER (WHERE w.state = 'waiting') AS waiting,
           count(*) FILTER (WHERE w.state = 'claimed') AS claimed,
           count(*) FILTER (WHERE w.state = 'done') AS done,
           count(*) FILTER (WHERE w.state = 'failed') AS failed,
           sum(w.rows)::bigint AS rows,
           sum(w.bytes)::bigint AS bytes,
           max(w.attempt) AS attempts,
           max(w.error) AS error
    FROM cdc.snapshot_task AS w
    WHERE w.snapshot_id = n.snapshot_id
    GROUP BY w.kind
) AS k ON true;
