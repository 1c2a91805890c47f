-- One row per table that anybody ever worked on: who holds its lease. `held` is false when it expired or was released.
CREATE VIEW cdc.v_lease AS
SELECT l.table_id,
       concat_ws('.', t.database_name, t.schema_name, t.table_name) AS source_table,
       l.expires_at > clock_timestamp() AS held,
       l.owner,
       l.epoch,
       l.acquired_at,
       l.renewed_at,
       l.expires_at,
       extract(epoch FROM greatest(l.expires_at - clock_timestamp(), interval '0')) AS seconds_left,
       t.stream
FROM cdc.lease AS l
JOIN cdc.source_table AS t ON t.table_id = l.table_id;
