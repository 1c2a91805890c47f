"""The rows that stay of cuts which are forgotten: read for the base of a chain, and put into a store made anew."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.operations.rebuild_from_lake import NUMBER_ON
from cdc_pipeline.metadata_store.operations.retention import Keep

Rows = list[dict[str, Any]]
_READ = {
    "source_table": """
        SELECT t.table_id, t.table_uuid,
               coalesce((SELECT min(s.number) FROM cdc.slice AS s
                         WHERE s.table_id = t.table_id AND s.boundary_id > :boundary_id),
                        t.next_slice_number) AS next_slice_number,
               (SELECT s.schema_id FROM cdc.slice AS s
                WHERE s.table_id = t.table_id AND s.boundary_id <= :boundary_id AND s.path IS NOT NULL AND NOT s.late
                ORDER BY s.number DESC LIMIT 1) AS schema_id,
               least(t.followed_at, :position) AS followed_at
        FROM cdc.source_table AS t WHERE t.stream = :stream ORDER BY t.table_id
        """,
    "table_schema": """
        SELECT s.* FROM cdc.table_schema AS s JOIN cdc.source_table AS t USING (table_id) WHERE t.stream = :stream
        ORDER BY s.table_id, s.first_offset, s.schema_id
        """,
    "boundary": """
        SELECT b.* FROM cdc.boundary AS b
        WHERE b.stream = :stream AND b.boundary_id <= :boundary_id
          AND (b.position = ANY (:positions) OR b.boundary_id = :boundary_id
               OR b.boundary_id IN (SELECT s.boundary_id FROM cdc.slice AS s JOIN kept USING (table_id, number)))
        ORDER BY b.position
        """,
    "slice": """
        SELECT s.*, b.position
        FROM cdc.slice AS s JOIN kept USING (table_id, number) JOIN cdc.boundary AS b USING (boundary_id)
        ORDER BY s.table_id, s.number
        """,
    "source_file": "SELECT f.* FROM cdc.source_file AS f WHERE f.stream = :stream ORDER BY stream_partition, number",
    # What the cut files that stay tell of is left out; decisions about rows of snapshots are told nowhere else.
    "quarantine": """
        SELECT q.* FROM cdc.quarantine AS q JOIN cdc.source_table AS t USING (table_id)
        WHERE t.stream = :stream
          AND (q.snapshot_id IS NOT NULL
               OR split_part(coalesce(q.place, q.start_offset), '-', 1) COLLATE "C" <= :position)
        ORDER BY q.quarantine_id
        """,
}
_KEPT = """
    WITH kept AS (SELECT * FROM jsonb_to_recordset(CAST(:kept AS jsonb)) AS k (table_id integer, number bigint))
    SELECT row_to_json(found) FROM ({}) AS found
    """
_UNKNOWN_EVENTS = text("""
    SELECT given.value ->> 'quarantine_id' AS quarantine_id, known.quarantine_id IS NOT NULL AS is_taken
    FROM json_array_elements(CAST(:rows AS json)) AS given
    LEFT JOIN cdc.quarantine AS known ON known.quarantine_id = CAST(given.value ->> 'quarantine_id' AS bigint)
    WHERE (given.value ->> 'snapshot_id' IS NULL
           OR EXISTS (SELECT FROM cdc.snapshot AS n WHERE n.snapshot_id = given.value ->> 'snapshot_id'))
      AND NOT EXISTS (
          SELECT FROM cdc.quarantine AS q
          WHERE q.table_id = CAST(given.value ->> 'table_id' AS integer) AND q.place = given.value ->> 'place'
            AND q.snapshot_id IS NOT DISTINCT FROM given.value ->> 'snapshot_id')
    """)
_DECIDE = text("""
    UPDATE cdc.quarantine AS q
    SET state = given.state, slice_number = given.slice_number, decision = given.decision, decided_at = given.decided_at
    FROM json_populate_recordset(NULL::cdc.quarantine, CAST(:rows AS json)) AS given
    WHERE q.table_id = given.table_id AND q.place = given.place AND q.state = 'waiting'
      AND q.snapshot_id = given.snapshot_id
    """)
_TABLES = text("""
    UPDATE cdc.source_table AS t
    SET next_slice_number = given.next_slice_number, schema_id = coalesce(given.schema_id, t.schema_id),
        forgotten_through = given.next_slice_number - 1, cleaned_through = given.next_slice_number - 1,
        -- a base that an older version wrote keeps the newest slice of each table, also an empty one
        followed_at = coalesce(given.followed_at, (
            SELECT b.position FROM cdc.slice AS s JOIN cdc.boundary AS b USING (boundary_id)
            WHERE s.table_id = t.table_id AND NOT s.late ORDER BY s.boundary_id DESC LIMIT 1))
    FROM json_populate_recordset(NULL::cdc.source_table, CAST(:rows AS json)) AS given WHERE t.table_id = given.table_id
    """)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRows:
    database: Database
    stream: str

    def read(self, keep: Keep) -> dict[str, Rows]:
        """By table of the store, as JSON; tables and slices as of the base, before anything was applied."""
        parameters = {"stream": self.stream, **keep.parameters()}
        with self.database.transaction("retention.read") as connection:
            rows = {
                name: list(connection.scalars(text(_KEPT.format(query)), parameters)) for name, query in _READ.items()
            }
        waiting = {"state": "registered", "claim_id": None, "applied_at": None}
        return rows | {"slice": [row | waiting for row in rows["slice"]]}


def restore(connection: Connection, rows: Mapping[str, Rows], table_ids: Mapping[UUID, int]) -> None:
    """Into a ledger that is empty but for the stream, the tables with these ids, and published snapshots.

    Rows of tables that have none of these uuids are left out: they were removed since.
    """
    numbers = {row["table_id"]: table_ids.get(UUID(row["table_uuid"])) for row in rows["source_table"]}
    ours = {name: _of_tables(found, numbers) for name, found in rows.items()}
    _insert(connection, "table_schema", ours["table_schema"])
    _insert(connection, "source_file", ours["source_file"])
    boundaries = {row["position"]: _insert_boundary(connection, row) for row in ours["boundary"]}
    _insert(
        connection,
        "slice",
        [_without(row, "position") | {"boundary_id": boundaries[row["position"]]} for row in ours["slice"]],
    )
    connection.execute(_TABLES, {"rows": json.dumps(ours["source_table"])})
    _restore_events(connection, ours["quarantine"])


def _of_tables(rows: Rows, numbers: Mapping[int, int | None]) -> Rows:
    known = [row for row in rows if "table_id" not in row or numbers[row["table_id"]] is not None]
    return [row | {"table_id": numbers[row["table_id"]]} if "table_id" in row else row for row in known]


def _restore_events(connection: Connection, rows: Rows) -> None:
    """Under the numbers that they had, where those are free. What is known already learns what was decided."""
    connection.execute(_DECIDE, {"rows": json.dumps(rows)})
    unknown = connection.execute(_UNKNOWN_EVENTS, {"rows": json.dumps(rows)}).all()
    is_taken = {int(row.quarantine_id): row.is_taken for row in unknown}
    missing = [row for row in rows if row["quarantine_id"] in is_taken]
    _insert(connection, "quarantine", [row for row in missing if not is_taken[row["quarantine_id"]]])
    connection.execute(text(NUMBER_ON))
    _insert(
        connection, "quarantine", [_without(row, "quarantine_id") for row in missing if is_taken[row["quarantine_id"]]]
    )


def _insert_boundary(connection: Connection, row: dict[str, Any]) -> int:
    _insert(connection, "boundary", [_without(row, "boundary_id")])
    place = {"stream": row["stream"], "position": row["position"]}
    found = text("SELECT boundary_id FROM cdc.boundary WHERE stream = :stream AND position = :position")
    return int(connection.execute(found, place).scalar_one())


def _insert(connection: Connection, table: str, rows: Rows) -> None:
    """Columns that the rows do not name take their defaults: they may have been written by older code."""
    if not rows:
        return
    known = models.metadata.tables[f"{models.SCHEMA}.{table}"].c
    names = ", ".join(f'"{column.name}"' for column in known if column.name in rows[0])
    statement = (
        f"INSERT INTO cdc.{table} ({names}) SELECT {names}"
        f" FROM json_populate_recordset(NULL::cdc.{table}, CAST(:rows AS json)) ON CONFLICT DO NOTHING"
    )
    connection.execute(text(statement), {"rows": json.dumps(rows)})


def _without(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}
