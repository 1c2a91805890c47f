-- One row per claim: which slices went into which version of the lake, by whom, and what it did.
CREATE VIEW cdc.v_claim_history AS
SELECT c.table_id,
       concat_ws('.', t.database_name, t.schema_name, t.table_name) AS source_table,
       c.claim_id,
       c.state,
       c.first_number,
       c.last_number,
       c.slices,
       c.attempt,
       c.owner,
       c.epoch,
       c.rows_read,
       c.rows_inserted,
       c.rows_updated,
       c.rows_deleted,
       c.rows_ignored,
       c.rows_parked,
       c.rows_tied,
       c.bytes,
       c.seconds,
       c.lake_version,
       c.error,
       c.started_at,
       c.finished_at,
       t.stream
FROM cdc.claim AS c
JOIN cdc.source_table AS t ON t.table_id = c.table_id;
