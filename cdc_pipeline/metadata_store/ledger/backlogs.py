"""The tables of a pipeline with slices to apply, asked again and again by one connection for all of them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import asyncpg
import structlog

from cdc_pipeline.errors import CdcError

log = structlog.get_logger()

_TIMEOUT_SECONDS = 10
_SLOWER_WHEN_AWAY = 5
_NEWEST_WAITING = """
    SELECT t.database_name || '.' || t.schema_name || '.' || t.table_name AS source_table,
           newest.number,
           held.table_id IS NOT NULL AS is_leased,
           false AS wants_snapshot
    FROM cdc.source_table AS t
    CROSS JOIN LATERAL (
        SELECT s.number
        FROM cdc.slice AS s
        WHERE s.table_id = t.table_id AND s.state = 'registered'
        ORDER BY s.number DESC
        LIMIT 1
    ) AS newest
    LEFT JOIN cdc.lease AS held ON held.table_id = t.table_id AND held.expires_at > clock_timestamp()
    LEFT JOIN cdc.failing_table AS failing ON failing.table_id = t.table_id
    WHERE t.stream = $1
      AND t.state IN ('live', 'parked')
      AND (failing.next_try_at IS NULL OR failing.next_try_at <= clock_timestamp())
    UNION ALL
    SELECT t.database_name || '.' || t.schema_name || '.' || t.table_name, t.next_slice_number, false, true
    FROM cdc.source_table AS t
    WHERE t.stream = $1
      AND t.snapshot_wanted
      AND NOT EXISTS (
          SELECT FROM cdc.snapshot AS s
          WHERE s.table_id = t.table_id AND s.state NOT IN ('published', 'failed', 'abandoned')
      )
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """A table with at least one slice that is not applied; none while it pauses after a failure.

    `wants_snapshot`: instead, a table that asks for a new snapshot by itself, and has none under way.
    """

    newest: int
    is_leased: bool
    wants_snapshot: bool = False


async def backlogs(
    find_url: Callable[[], str], stream: str, *, poll_interval: timedelta
) -> AsyncGenerator[Mapping[str, Backlog]]:
    """For ever: each table with a backlog, by `db.schema.table`, as it is now. One query per poll.

    While the store is away nothing comes, the log says why, and `find_url` is asked anew before each try.
    """
    pause, connection = poll_interval.total_seconds(), None
    try:
        while True:
            try:
                connection = connection or await _connected(find_url)
                rows = await connection.fetch(_NEWEST_WAITING, stream)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, CdcError) as error:
                log.warning("backlogs not read", stream=stream, error=f"{type(error).__name__}: {error}")
                _leave(connection)
                connection = None
            else:
                yield {
                    row["source_table"]: Backlog(
                        newest=row["number"], is_leased=row["is_leased"], wants_snapshot=row["wants_snapshot"]
                    )
                    for row in rows
                }
            await asyncio.sleep(pause if connection is not None else pause * _SLOWER_WHEN_AWAY)
    finally:
        _leave(connection)


async def _connected(find_url: Callable[[], str]) -> "asyncpg.Connection":
    url = await asyncio.to_thread(find_url)
    return await asyncpg.connect(
        url,
        timeout=_TIMEOUT_SECONDS,
        command_timeout=_TIMEOUT_SECONDS,
        server_settings={"application_name": "cdc", "default_transaction_read_only": "on"},
    )


def _leave(connection: "asyncpg.Connection | None") -> None:
    if connection is not None:
        connection.terminate()
