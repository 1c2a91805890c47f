-- One row per claim: its slices, its owner, its lake version, and the rows that it changed. `rows_incomplete`: ids
-- left incomplete. `rows_tied`: how often events of one id had the same sequence. `claim_id` is in the lake's commit,
-- too. `finished_at`: when it was applied or given up.
CREATE VIEW cdc.v_claim_history AS
SELECT claim.table_id,
       cdc.table_name(source.database_name, source.schema_name, source.table_name) AS source_table,
       claim.claim_id,
       claim.state,
       claim.first_number,
       claim.last_number,
       claim.slices,
       claim.attempt,
       claim.owner,
       claim.epoch,
       claim.rows_read,
       claim.rows_inserted,
       claim.rows_updated,
       claim.rows_deleted,
       claim.rows_ignored,
       claim.rows_incomplete,
       claim.rows_tied,
       claim.bytes,
       claim.seconds,
       claim.lake_version,
       claim.error,
       claim.started_at,
       claim.finished_at,
       source.stream
FROM cdc.claim
JOIN cdc.source_table AS source ON source.table_id = claim.table_id;
