"""What of a metadata store has to come back when it is rebuilt."""

from contextlib import closing
from typing import Any

import psycopg2

from tests.support.command_line import query
from tests.support.streams import database_of, run_sql

Ledger = dict[str, list[tuple[Any, ...]]]

_LEDGER = {
    "stream": "SELECT * FROM cdc.stream",
    "stream_partition": """
        SELECT stream, stream_partition, next_offset, watermark, label_start, label_end, last_position
        FROM cdc.stream_partition ORDER BY stream_partition""",
    "source_file": "SELECT * FROM cdc.source_file ORDER BY stream_partition, number",
    "source_table": """
        SELECT to_jsonb(t) - ARRAY['registered_at', 'shape', 'forgotten_through', 'cleaned_through']
        FROM cdc.source_table AS t ORDER BY table_id""",
    "table_schema": "SELECT table_id, schema_id, document FROM cdc.table_schema ORDER BY table_id, schema_id",
    "boundary": """
        SELECT stream, position, commit_time, label_start, label_end, late_slices
        FROM cdc.boundary ORDER BY position""",
    "slice": """
        SELECT s.table_id, number, slice_id, position, stream_partition, s.label_start, s.label_end, start_offset,
            end_offset, path, size_bytes, rows, sha256, schema_id, key_changes, partial_rows, truncates,
            key_ranges, state, claim_id::text, truncated_at, late
        FROM cdc.slice AS s JOIN cdc.boundary USING (boundary_id) ORDER BY table_id, number""",
    "claim": """
        SELECT claim_id::text, table_id, first_number, last_number, state, slices, rows_read, lake_version
        FROM cdc.claim WHERE state IN ('applied', 'rewound') ORDER BY table_id, lake_version""",
    "snapshot": """
        SELECT snapshot_id, table_id, state, cutoff_offset, cutoff_version, cutoff_time, schema_id, fence_number,
            lake_version, rows, files, bytes
        FROM cdc.snapshot WHERE state = 'published' ORDER BY snapshot_id""",
    "quarantine": """
        SELECT table_id, stream_partition, version, start_offset, end_offset, reason, "column", snapshot_id, place,
            slice_number, state
        FROM cdc.quarantine ORDER BY table_id, version, place""",
}
"""All that has to come back.

What does not: times of work, epochs, owners and attempts, figures of claims beside the rows that were read, failed
claims and snapshots, that somebody asked for a cut where one was already, numbers of boundaries and of events in
quarantine, mended texts, the catalogue's shapes that are younger than the snapshot, and how far slices behind the base
of the chain are forgotten.
"""


def ledger_of(store_url: str) -> Ledger:
    return {name: query(store_url, statement) for name, statement in _LEDGER.items()}


def copy_store(store_url: str, source: str, target: str) -> None:
    """Makes the database `target` a copy of `source`, whatever it was. Nobody is connected to either afterwards.

    `store_url`: of any database of the same server.
    """
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
    with closing(psycopg2.connect(store_url.replace(f"/{database_of(store_url)}", "/postgres"))) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{target}" WITH (FORCE)')
            cursor.execute(end, (source,))
            cursor.execute(f'CREATE DATABASE "{target}" TEMPLATE "{source}"')


def forget_store(store_url: str) -> None:
    """Nothing is left of it but its empty tables."""
    ((tables,),) = query(
        store_url,
        "SELECT string_agg(format('cdc.%I', tablename), ', ') FROM pg_tables"
        " WHERE schemaname = 'cdc' AND tablename <> 'alembic_version'",
    )
    run_sql(store_url, f"TRUNCATE {tables} RESTART IDENTITY CASCADE")
