-- One row per source table: how far the lake is, how many slices wait, and who works on the table. `reason`: what
-- keeps its position from rising. `state_reason`: why it is parked or stale. `lake_position`, `lake_as_of`: those of
-- `v_lake_position`. `last_claim_*`: the claim with the highest numbers; its `error` is why it was given up.
-- `snapshot_wanted`: a new snapshot starts by itself. `under_repair`: a repair runs, or was killed.
CREATE VIEW cdc.v_table_lag AS
SELECT position.table_id,
       position.source_table,
       source.state,
       waiting.slices AS slices_waiting,
       waiting.rows AS rows_waiting,
       position.applied_through,
       position.position AS lake_position,
       position.position_lsn AS lake_position_lsn,
       position.as_of AS lake_as_of,
       position.seconds_behind,
       last_claim.state AS last_claim_state,
       last_claim.started_at AS last_claim_started_at,
       last_claim.rows_read AS last_claim_rows,
       last_claim.seconds AS last_claim_seconds,
       last_claim.error AS last_claim_error,
       lease.owner AS lease_owner,
       source.state_reason,
       quarantined.events AS events_quarantined,
       failing.failures,
       failing.failing_since,
       failing.next_try_at,
       failing.error AS failure,
       -- what stopped the stream, or what will stop it
       coalesce((SELECT max(part.alarm)
                 FROM cdc.stream_partition AS part
                 WHERE part.stream = source.stream AND NOT (part.last_position ? 'ended')),
                (SELECT log.warning FROM cdc.source_log AS log WHERE log.stream = source.stream)) AS stream_alarm,
       source.stream,
       position.reason,
       withheld.rows_withheld,
       withheld.rows_incomplete,
       source.snapshot_wanted,
       source.under_repair
FROM cdc.v_lake_position AS position
JOIN cdc.source_table AS source ON source.table_id = position.table_id
JOIN cdc.v_withheld AS withheld ON withheld.table_id = position.table_id
LEFT JOIN cdc.lease ON lease.table_id = position.table_id AND lease.expires_at > clock_timestamp()
CROSS JOIN LATERAL (
    SELECT count(*) AS slices, coalesce(sum(slice.rows), 0)::bigint AS rows
    FROM cdc.slice
    WHERE slice.table_id = position.table_id AND slice.state = 'registered'
) AS waiting
LEFT JOIN cdc.failing_table AS failing ON failing.table_id = position.table_id
LEFT JOIN LATERAL (
    SELECT claim.state, claim.started_at, claim.rows_read, claim.seconds, claim.error
    FROM cdc.claim
    WHERE claim.table_id = position.table_id AND claim.state <> 'rewound'
    ORDER BY claim.first_number DESC, claim.started_at DESC
    LIMIT 1
) AS last_claim ON true
CROSS JOIN LATERAL (
    SELECT count(*) AS events
    FROM cdc.quarantine AS event
    WHERE event.table_id = position.table_id AND event.state = 'waiting'
) AS quarantined;
