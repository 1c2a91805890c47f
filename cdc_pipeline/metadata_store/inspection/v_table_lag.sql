-- One row per source table: how far the lake is, what waits, who works on it.
CREATE VIEW cdc.v_table_lag AS
SELECT p.table_id,
       p.source_table,
       t.state,
       waiting.slices AS slices_waiting,
       waiting.rows AS rows_waiting,
       p.applied_through,
       p.position AS lake_position,
       p.position_lsn AS lake_position_lsn,
       p.as_of AS lake_as_of,
       p.seconds_behind,
       last_claim.state AS last_claim_state,
       last_claim.started_at AS last_claim_started_at,
       last_claim.rows_read AS last_claim_rows,
       last_claim.seconds AS last_claim_seconds,
       last_claim.error AS last_claim_error,
       l.owner AS lease_owner,
       t.parked_reason,
       kept_aside.events AS events_quarantined,
       f.failures,
       f.failing_since,
       f.next_try_at,
       f.error AS failure,
       -- what stopped the stream, or what is going to
       coalesce((SELECT max(sp.alarm) FROM cdc.stream_partition AS sp WHERE sp.stream = t.stream),
                (SELECT sl.warning FROM cdc.source_log AS sl WHERE sl.stream = t.stream)) AS stream_alarm,
       t.stream,
       p.reason,
       withheld.rows_withheld,
       withheld.rows_incomplete,
       t.snapshot_wanted
FROM cdc.v_lake_position AS p
JOIN cdc.source_table AS t ON t.table_id = p.table_id
JOIN cdc.v_withheld AS withheld ON withheld.table_id = p.table_id
LEFT JOIN cdc.lease AS l ON l.table_id = p.table_id AND l.expires_at > clock_timestamp()
CROSS JOIN LATERAL (
    SELECT count(*) AS slices, coalesce(sum(s.rows), 0)::bigint AS rows
    FROM cdc.slice AS s
    WHERE s.table_id = p.table_id AND s.state = 'registered' AND s.path IS NOT NULL
) AS waiting
LEFT JOIN cdc.failing_table AS f ON f.table_id = p.table_id
LEFT JOIN LATERAL (
    SELECT c.state, c.started_at, c.rows_read, c.seconds, c.error
    FROM cdc.claim AS c
    WHERE c.table_id = p.table_id
    ORDER BY c.first_number DESC, c.started_at DESC
    LIMIT 1
) AS last_claim ON true
CROSS JOIN LATERAL (
    SELECT count(*) AS events
    FROM cdc.quarantine AS q
    WHERE q.table_id = p.table_id AND q.state = 'waiting'
) AS kept_aside;
