"""Rows of forgotten cuts that the base of a chain of cut files keeps: read for it, and restored by a rebuild."""

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from cdc_pipeline.errors import RegistryError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStream
from cdc_pipeline.metadata_store.operations.restored_events import drop_forgotten, restore_events
from cdc_pipeline.metadata_store.operations.retention import Keep

Rows = list[dict[str, Any]]
_READ = {
    # next_slice_number and schema_id are those that the table had at the base. The others are as of now: followed_at
    # behind the base is corrected by the base's cut file; halted_at ends with a snapshot whose cutoff is later.
    "source_table": """
        SELECT source.table_id, source.table_uuid,
               coalesce((SELECT min(slice.number) FROM cdc.slice
                         WHERE slice.table_id = source.table_id AND slice.boundary_id > :boundary_id),
                        source.next_slice_number) AS next_slice_number,
               (SELECT slice.schema_id FROM cdc.slice
                WHERE slice.table_id = source.table_id AND slice.boundary_id <= :boundary_id AND NOT slice.late
                ORDER BY slice.number DESC LIMIT 1) AS schema_id,
               source.followed_at,
               CASE WHEN source.state = 'stale' THEN source.halted_at END AS halted_at
        FROM cdc.source_table AS source WHERE source.stream = :stream ORDER BY source.table_id
        """,
    "table_schema": """
        SELECT table_schema.* FROM cdc.table_schema JOIN cdc.source_table AS source USING (table_id)
        WHERE source.stream = :stream
        ORDER BY table_schema.table_id, table_schema.first_offset, table_schema.schema_id
        """,
    "boundary": """
        SELECT boundary.* FROM cdc.boundary
        WHERE boundary.stream = :stream AND boundary.boundary_id <= :boundary_id
          AND (boundary.position = ANY (:positions) OR boundary.boundary_id = :boundary_id
               OR boundary.boundary_id IN (SELECT slice.boundary_id FROM cdc.slice JOIN kept USING (table_id, number)))
        ORDER BY boundary.position
        """,
    "slice": """
        SELECT slice.*, boundary.position
        FROM cdc.slice JOIN kept USING (table_id, number) JOIN cdc.boundary USING (boundary_id)
        ORDER BY slice.table_id, slice.number
        """,
    "source_file": """
        SELECT source_file.* FROM cdc.source_file WHERE source_file.stream = :stream ORDER BY stream_partition, number
        """,
    # Events of cuts behind the base are in the cut files. Decisions about rows of snapshots are nowhere else.
    "quarantine": """
        SELECT quarantine.* FROM cdc.quarantine JOIN cdc.source_table AS source USING (table_id)
        WHERE source.stream = :stream
          AND (quarantine.snapshot_id IS NOT NULL
               OR split_part(quarantine.place, '-', 1) COLLATE "C" <= :position)
        ORDER BY quarantine.quarantine_id
        """,
}
_AT_ONE_MOMENT = """
    SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
    SET LOCAL idle_in_transaction_session_timeout = 0
    """
"""The rows belong together. The driver may decode millions of them for longer than a session may be idle."""
_AS_JSON = """
    WITH kept AS (SELECT * FROM jsonb_to_recordset(CAST(:kept AS jsonb)) AS kept (table_id integer, number bigint))
    SELECT row_to_json(found) FROM ({}) AS found
    """
_SET_TABLES = text("""
    UPDATE cdc.source_table AS source
    SET next_slice_number = given.next_slice_number, schema_id = coalesce(given.schema_id, source.schema_id),
        forgotten_through = given.next_slice_number - 1, cleaned_through = given.next_slice_number - 1,
        followed_at = given.followed_at, halted_at = given.halted_at
    FROM json_populate_recordset(NULL::cdc.source_table, CAST(:rows AS json)) AS given
    WHERE source.table_id = given.table_id
    """)
_BOUNDARY_AT = text("SELECT boundary_id FROM cdc.boundary WHERE stream = :stream AND position = :position")


class BaseRows(OfStream):
    def read(self, keep: Keep) -> dict[str, Rows]:
        """The rows that stay, by table of the store, as JSON.

        Tables and slices are as of the base, before anything was applied. Raises RegistryError when the store was
        rebuilt since `keep` was read: its boundaries have other ids now.
        """
        parameters = {"stream": self.stream, **keep.parameters()}
        with self.database.transaction("retention.read") as connection:
            connection.exec_driver_sql(_AT_ONE_MOMENT)
            if connection.scalar(_BOUNDARY_AT, parameters) != keep.base.boundary_id:
                raise RegistryError(
                    "the metadata store was rebuilt meanwhile",
                    expected=f"the boundary at {keep.base.position} under its number {keep.base.boundary_id}",
                    remedy="run cdc clean again: no cut file was deleted",
                )
            rows = {
                name: list(connection.scalars(text(_AS_JSON.format(query)), parameters))
                for name, query in _READ.items()
            }
        waiting = {"state": "registered", "claim_id": None, "applied_at": None}
        return rows | {"slice": [row | waiting for row in rows["slice"]]}


def restore(connection: Connection, rows: Mapping[str, Rows], table_ids: Mapping[UUID, int], position: str) -> None:
    """Inserts the rows into a ledger that has only the stream, the tables `table_ids`, and published snapshots.

    Rows of tables that are not in `table_ids` are left out: those tables were removed since. So are rows of tables that
    the base lacks, which bases of older versions can have. `position`: of the base. A quarantined
    event up to that position that waits in the ledger gets the state that the base has for it; one that the base lacks
    is dropped.
    """
    new_ids = {row["table_id"]: table_ids.get(UUID(row["table_uuid"])) for row in rows["source_table"]}
    ours = {name: _of_tables(found, new_ids) for name, found in rows.items()}
    _insert(connection, "table_schema", ours["table_schema"])
    _insert(connection, "source_file", ours["source_file"])
    boundaries = {row["position"]: _insert_boundary(connection, row) for row in ours["boundary"]}
    _insert(
        connection,
        "slice",
        [_without(row, "position") | {"boundary_id": boundaries[row["position"]]} for row in ours["slice"]],
    )
    connection.execute(_SET_TABLES, {"rows": json.dumps(ours["source_table"])})
    restore_events(connection, ours["quarantine"])
    drop_forgotten(connection, ours["quarantine"], [row["table_id"] for row in ours["source_table"]], position)


def _of_tables(rows: Rows, new_ids: Mapping[int, int | None]) -> Rows:
    known = [row for row in rows if "table_id" not in row or new_ids.get(row["table_id"]) is not None]
    return [row | {"table_id": new_ids[row["table_id"]]} if "table_id" in row else row for row in known]


def _insert_boundary(connection: Connection, row: dict[str, Any]) -> int:
    _insert(connection, "boundary", [_without(row, "boundary_id")])
    found = connection.execute(_BOUNDARY_AT, {"stream": row["stream"], "position": row["position"]})
    return int(found.scalar_one())


def _insert(connection: Connection, table: str, rows: Rows) -> None:
    """Inserts the columns that this code knows. Columns that the rows lack take their defaults."""
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
