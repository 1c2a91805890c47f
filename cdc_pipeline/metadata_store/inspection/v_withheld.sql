-- One row per source table: rows of the source that the lake does not show. `since_position` is the first cut that the
-- lake cannot equal because of them; it is empty, which orders before every position, where rows of the published
-- snapshot are among them. A replayed event counts until its late slice is applied.
-- `rows_incomplete` counts ids that claims since the snapshot left hidden; some may have been completed since.
CREATE VIEW cdc.v_withheld AS
SELECT t.table_id,
       t.stream,
       concat_ws('.', t.database_name, t.schema_name, t.table_name) AS source_table,
       (SELECT count(*)
        FROM cdc.quarantine AS q
        LEFT JOIN cdc.snapshot AS n ON n.snapshot_id = q.snapshot_id
        WHERE q.table_id = t.table_id AND q.state = 'waiting'
          AND (q.snapshot_id IS NULL OR n.state = 'published'))
       + (SELECT count(*)
          FROM cdc.slice AS s
          JOIN cdc.quarantine AS q ON q.table_id = s.table_id AND q.slice_number = s.number AND q.state = 'replayed'
          WHERE s.table_id = t.table_id AND s.late AND s.state = 'registered') AS rows_withheld,
       (SELECT coalesce(sum(c.rows_parked), 0)::bigint
        FROM cdc.claim AS c
        WHERE c.table_id = t.table_id AND c.rows_parked > 0 AND c.state = 'applied'
          AND c.first_number > coalesce(
              (SELECT max(n.fence_number) FROM cdc.snapshot AS n
               WHERE n.table_id = t.table_id AND n.state = 'published'), 0)) AS rows_incomplete,
       least(
           (SELECT min(CASE WHEN q.snapshot_id IS NULL
                            THEN coalesce(split_part(q.place, '-', 1), q.start_offset) ELSE '' END COLLATE "C")
            FROM cdc.quarantine AS q
            LEFT JOIN cdc.snapshot AS n ON n.snapshot_id = q.snapshot_id
            WHERE q.table_id = t.table_id AND q.state = 'waiting'
              AND (q.snapshot_id IS NULL OR n.state = 'published')),
           (SELECT min(CASE WHEN q.snapshot_id IS NULL
                            THEN coalesce(split_part(q.place, '-', 1), q.start_offset) ELSE '' END COLLATE "C")
            FROM cdc.slice AS s
            JOIN cdc.quarantine AS q ON q.table_id = s.table_id AND q.slice_number = s.number AND q.state = 'replayed'
            WHERE s.table_id = t.table_id AND s.late AND s.state = 'registered')
       ) AS since_position
FROM cdc.source_table AS t;
