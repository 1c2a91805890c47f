-- One row per table that was ever leased: its last owner. `held` is false when the lease expired or was released.
-- `acquired_at`, `renewed_at`: when the owner took it, and last prolonged it.
CREATE VIEW cdc.v_lease AS
SELECT lease.table_id,
       cdc.table_name(source.database_name, source.schema_name, source.table_name) AS source_table,
       lease.expires_at > clock_timestamp() AS held,
       lease.owner,
       lease.epoch,
       lease.acquired_at,
       lease.renewed_at,
       lease.expires_at,
       extract(epoch FROM greatest(lease.expires_at - clock_timestamp(), interval '0')) AS seconds_left,
       source.stream
FROM cdc.lease
JOIN cdc.source_table AS source ON source.table_id = lease.table_id;
