"""Finds the tables of a pipeline that have work waiting, and their slice requests.

For each of the two, one connection polls for all tables.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import structlog

from cdc_pipeline.errors import CdcError
from cdc_pipeline.metadata_store.database import asyncpg_arguments
from cdc_pipeline.metadata_store.ledger.stale_tables import WANTS_SNAPSHOT

log = structlog.get_logger()

_TIMEOUT_SECONDS = 10
_SLOWER_WHEN_AWAY = 25
_LONGEST_SILENCE_SECONDS = 1.0
_NEWEST_OF_TABLE = """
    SELECT slice.number
    FROM cdc.slice
    WHERE slice.table_id = source.table_id AND slice.state = 'registered'
    ORDER BY slice.number DESC
    LIMIT 1
    """
_HAS_WORKERS = """EXISTS (
        SELECT FROM cdc.resident_worker AS worker
        WHERE worker.stream = source.stream AND worker.expires_at > clock_timestamp()
    )"""
# One whose task is lost, as with Airflow's database, and that no worker takes, stays open for ever.
_IS_ASKED = f"""coalesce(
        request.state IN ('requested', 'taken')
        AND (request.requested_at > clock_timestamp() - interval '2 minutes' OR {_HAS_WORKERS}),
        false
    )"""
# A slice run publishes the empty lake table of a source without a catalogue, but not beside a snapshot of files.
_BEGINS_EMPTY = """(
        source.state IN ('registered', 'snapshotting') AND source.shape IS NULL
        AND NOT EXISTS (
            SELECT FROM cdc.snapshot AS active
            WHERE active.table_id = source.table_id AND active.exported_snapshot IS NOT NULL
              AND active.state NOT IN ('published', 'failed', 'abandoned')
        )
    )"""
_NEWEST_WAITING = f"""
    SELECT cdc.table_name(source.database_name, source.schema_name, source.table_name) AS source_table,
           newest.number AS newest,
           lease.table_id IS NOT NULL OR {_IS_ASKED} AS is_leased,
           coalesce(request.state = 'done' AND request.goes_on_until > clock_timestamp(), false) AS is_awaited,
           false AS wants_snapshot
    FROM cdc.source_table AS source
    CROSS JOIN LATERAL ({_NEWEST_OF_TABLE}) AS newest
    LEFT JOIN cdc.lease ON lease.table_id = source.table_id AND lease.expires_at > clock_timestamp()
    LEFT JOIN cdc.slice_request AS request ON request.table_id = source.table_id
    LEFT JOIN cdc.failing_table AS failing ON failing.table_id = source.table_id
    WHERE source.stream = $1
      AND (source.state IN ('live', 'parked') OR {_BEGINS_EMPTY})
      AND (failing.next_try_at IS NULL OR failing.next_try_at <= clock_timestamp())
    UNION ALL
    SELECT cdc.table_name(source.database_name, source.schema_name, source.table_name),
           source.next_slice_number,
           false,
           false,
           true
    FROM cdc.source_table AS source
    WHERE source.stream = $1 AND {WANTS_SNAPSHOT}
    """

_RECENT_REQUESTS = f"""
    SELECT cdc.table_name(source.database_name, source.schema_name, source.table_name) AS source_table,
           request.request_id,
           request.state,
           request.worker,
           {_HAS_WORKERS} AS has_workers,
           coalesce(request.goes_on_until > clock_timestamp(), false) AS goes_on,
           CASE
               WHEN request.state = 'done' AND request.goes_on_until > clock_timestamp()
                AND NOT source.snapshot_wanted
                AND NOT EXISTS (
                    SELECT FROM cdc.lease
                    WHERE lease.table_id = source.table_id AND lease.expires_at > clock_timestamp()
                )
               THEN ({_NEWEST_OF_TABLE})
           END AS newest
    FROM cdc.slice_request AS request
    JOIN cdc.source_table AS source USING (table_id)
    WHERE source.stream = $1
      AND (
          request.ended_at IS NULL
          OR request.ended_at > clock_timestamp() - interval '1 minute'
          OR request.goes_on_until > clock_timestamp()
      )
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentRequest:
    """A slice request that has not ended, that ended in the last minute, or whose run is open.

    `has_workers`: a resident worker is alive. `newest`: the newest slice that waits for the run to ask again; None when
    none waits, or when another worker has the table.
    """

    request_id: UUID
    state: str
    worker: str | None
    has_workers: bool
    goes_on: bool = False
    newest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """A table with work waiting: slices to apply, or with `wants_snapshot` a new snapshot to take.

    `is_leased`: a worker is at work on it, or is asked to be by a slice request; an older request counts only while a
    resident worker is alive. `is_awaited`: a slice run is open that asks for it.

    A table that pauses after a failure has no backlog, and neither has one whose wanted snapshot is being taken, or
    pauses after tries that failed.
    """

    newest: int
    is_leased: bool
    is_awaited: bool = False
    wants_snapshot: bool = False


async def backlogs(
    find_url: Callable[[], str], stream: str, *, poll_interval: timedelta
) -> AsyncGenerator[Mapping[str, Backlog]]:
    """Yields the tables with a backlog, by name `db.schema.table`. Never ends; see `_polled`."""
    async with aclosing(_polled(find_url, _NEWEST_WAITING, stream, poll_interval)) as polls:
        async for rows in polls:
            yield {row["source_table"]: Backlog(**_without_name(row)) for row in rows}


async def recent_requests(
    find_url: Callable[[], str], stream: str, *, poll_interval: timedelta
) -> AsyncGenerator[Mapping[str, RecentRequest]]:
    """Yields the tables with a recent slice request, by name. Never ends; see `_polled`."""
    async with aclosing(_polled(find_url, _RECENT_REQUESTS, stream, poll_interval)) as polls:
        async for rows in polls:
            yield {row["source_table"]: RecentRequest(**_without_name(row)) for row in rows}


def _without_name(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "source_table"}


async def _polled(
    find_url: Callable[[], str], query: str, stream: str, poll_interval: timedelta
) -> AsyncGenerator[Sequence[Mapping[str, Any]]]:
    """Yields the rows of `query` at the first poll that finds others than before, and else every second.

    A poll costs little, but each of its readers looks at what is yielded. While the store does not answer, it yields
    nothing, logs the error, and calls `find_url` again before each try.
    """
    pause, connection = poll_interval.total_seconds(), None
    known, yielded_at = list[Mapping[str, Any]](), float("-inf")
    try:
        while True:
            try:
                connection = connection or await _connected(find_url)
                rows = await connection.fetch(query, stream)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, CdcError) as error:
                log.warning("metadata store not polled", stream=stream, error=f"{type(error).__name__}: {error}")
                _leave(connection)
                connection = None
            else:
                if rows != known or time.monotonic() - yielded_at >= _LONGEST_SILENCE_SECONDS:
                    known, yielded_at = rows, time.monotonic()
                    yield rows
            await asyncio.sleep(pause if connection is not None else pause * _SLOWER_WHEN_AWAY)
    finally:
        _leave(connection)


async def _connected(find_url: Callable[[], str]) -> "asyncpg.Connection":
    url = await asyncio.to_thread(find_url)
    return await asyncpg.connect(
        **asyncpg_arguments(url),
        command_timeout=_TIMEOUT_SECONDS,
        server_settings={"application_name": "cdc", "default_transaction_read_only": "on"},
    )


def _leave(connection: "asyncpg.Connection | None") -> None:
    if connection is not None:
        connection.terminate()
