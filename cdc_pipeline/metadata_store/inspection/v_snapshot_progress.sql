-- One row per snapshot and kind of task; one row without a kind while a snapshot has no tasks.
-- `attempts`: the most that a task of the kind needed. `rows_published`, `files_published`: those of the commit.
-- `finished_at`: when it was published or given up.
CREATE VIEW cdc.v_snapshot_progress AS
SELECT snapshot.snapshot_id,
       snapshot.table_id,
       cdc.table_name(source.database_name, source.schema_name, source.table_name) AS source_table,
       snapshot.state,
       snapshot.cutoff_offset,
       CAST(left(snapshot.cutoff_offset, 8) || '/' || right(snapshot.cutoff_offset, 8) AS pg_lsn) AS cutoff_lsn,
       snapshot.cutoff_time,
       tasks.kind,
       coalesce(tasks.waiting, 0) AS tasks_waiting,
       coalesce(tasks.claimed, 0) AS tasks_claimed,
       coalesce(tasks.done, 0) AS tasks_done,
       coalesce(tasks.failed, 0) AS tasks_failed,
       coalesce(tasks.rows, 0) AS rows_done,
       coalesce(tasks.bytes, 0) AS bytes_done,
       tasks.attempts,
       snapshot.rows AS rows_published,
       snapshot.files AS files_published,
       snapshot.lake_version,
       coalesce(snapshot.error, tasks.error) AS error,
       snapshot.started_at,
       snapshot.finished_at,
       source.stream,
       (SELECT count(*) FROM cdc.quarantine AS event
        WHERE event.snapshot_id = snapshot.snapshot_id AND event.state = 'waiting') AS rows_withheld
FROM cdc.snapshot
JOIN cdc.source_table AS source ON source.table_id = snapshot.table_id
LEFT JOIN LATERAL (
    SELECT task.kind,
           count(*) FILTER (WHERE task.state = 'waiting') AS waiting,
           count(*) FILTER (WHERE task.state = 'claimed') AS claimed,
           count(*) FILTER (WHERE task.state = 'done') AS done,
           count(*) FILTER (WHERE task.state = 'failed') AS failed,
           sum(task.rows)::bigint AS rows,
           sum(task.bytes)::bigint AS bytes,
           max(task.attempt) AS attempts,
           max(task.error) AS error
    FROM cdc.snapshot_task AS task
    WHERE task.snapshot_id = snapshot.snapshot_id
    GROUP BY task.kind
) AS tasks ON true;
