"""Stale tables: the stream may lack changes of a stale table, so it needs a new snapshot."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, func, select, text, update

from cdc_pipeline.errors import RegistryError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore
from cdc_pipeline.metadata_store.ledger.cut import Cut, gap_reason, late_reason
from cdc_pipeline.metadata_store.ledger.quarantine_decisions import drop_events_of_snapshot
from cdc_pipeline.metadata_store.ledger.records import Stream
from cdc_pipeline.metadata_store.ledger.streams import locked_partitions
from cdc_pipeline.metadata_store.ledger.tables import halt
from cdc_pipeline.metadata_store.states import FINISHED_SNAPSHOTS, SnapshotState, TableState

_TABLE, _SNAPSHOT, _PARTITION = models.source_table, models.snapshot, models.stream_partition
_STREAM, _BOUNDARY = models.stream, models.boundary
SILENCE = "interval '15 minutes'"
"""A snapshot whose leases and tasks ended so long ago has no run: its orchestrator looks at it every ten minutes."""
_TASKS_OF_RUN = """
                          FROM cdc.snapshot_task AS task
                          JOIN cdc.snapshot AS neighbour USING (snapshot_id)
                          WHERE neighbour.state NOT IN ('published', 'failed', 'abandoned')
                            AND split_part(neighbour.snapshot_id, '-', 2) = split_part(active.snapshot_id, '-', 2)
    """
WANTS_SNAPSHOT = f"""
    source.snapshot_wanted
    AND NOT EXISTS (
        SELECT FROM cdc.snapshot AS active
        WHERE active.table_id = source.table_id AND active.state NOT IN ('published', 'failed', 'abandoned')
          AND (active.started_at > clock_timestamp() - {SILENCE}
               OR EXISTS (SELECT FROM cdc.lease
                          WHERE lease.table_id = source.table_id AND lease.expires_at > clock_timestamp())
               OR EXISTS (SELECT {_TASKS_OF_RUN}
                            AND task.state = 'claimed' AND task.lease_expires_at > clock_timestamp())
               OR EXISTS (SELECT {_TASKS_OF_RUN}
                            AND greatest(task.created_at, task.finished_at, task.lease_expires_at)
                                > clock_timestamp() - {SILENCE}))
    )
    AND clock_timestamp() >= (
        SELECT coalesce(max(failed.finished_at) + interval '1 minute' * power(2, least(count(*), 9) - 1), '-infinity')
        FROM cdc.snapshot AS failed
        WHERE failed.table_id = source.table_id AND failed.state = 'failed'
          AND failed.finished_at > coalesce(
              (SELECT max(published.finished_at) FROM cdc.snapshot AS published
               WHERE published.table_id = source.table_id AND published.state = 'published'), '-infinity')
    )
    """
"""Whether a wanted snapshot of the table `source` is to begin now.

Not while one has a run; whoever works on it holds a lease. The snapshots of one run share the middle part of their
ids: the tasks of a table may wait for long while the worker slots do those of its neighbours. After snapshots that
failed in a row it begins later: after one minute, then twice as long each time, up to 256 minutes, because each try
copies the whole table.

It is asked five times a second. An index has the tasks that are claimed; the last EXISTS reads every task of the run.
"""
_WANTING = text(f"""
    SELECT source.table_id FROM cdc.source_table AS source WHERE {WANTS_SNAPSHOT}
    """)
_FOLLOWED = text("""
    SELECT source_table.table_id,
           greatest(coalesce(source_table.followed_at, active.cutoff_offset),
                    -- position 0 is the cutoff of a table that is read from files: nothing was read up to there
                    nullif(source_table.cutoff_offset, '0000000000000000')) AS followed
    FROM cdc.source_table
    LEFT JOIN cdc.snapshot AS active
        ON active.table_id = source_table.table_id AND active.state NOT IN ('published', 'failed', 'abandoned')
    WHERE source_table.table_id = ANY (:tables) AND source_table.state NOT IN ('registered', 'stale')
    ORDER BY source_table.table_id
    """)


class StaleTables(OfStore):
    def mark(self, table_id: int, reason: str, *, snapshot_wanted: bool = False) -> None:
        """Marks the table as stale: its events are no longer read and its slices no longer applied.

        Abandons an active snapshot. `snapshot_wanted`: the next snapshot run takes a new snapshot without a request.
        """
        with self.database.transaction("table.mark_stale") as connection:
            mark_stale(connection, [table_id], reason, snapshot_wanted=snapshot_wanted)

    def wanting_snapshot(self) -> frozenset[int]:
        """Ids of the tables whose wanted snapshot is to begin now: none is being taken, and no pause goes on."""
        with self.database.transaction("table.list") as connection:
            return frozenset(connection.scalars(_WANTING))

    def want_snapshot(self, table_id: int, *, wanted: bool) -> None:
        """Sets whether the next snapshot run takes a snapshot of a stale table without a request."""
        with self.database.transaction("table.want_snapshot") as connection:
            connection.execute(update(_TABLE).where(_TABLE.c.table_id == table_id).values(snapshot_wanted=wanted))

    def begin_again(self, table_id: int, *, source_oid: int, settings: Mapping[str, Any], published_as: str) -> None:
        """Lets the consumer read events of a stale table again, for the coming snapshot. Idempotent.

        `source_oid`: the table of the source that it is now. The table stays stale until the snapshot is published.
        """
        with self.database.transaction("table.begin_again") as connection:
            connection.execute(
                update(_TABLE)
                .where(_TABLE.c.table_id == table_id, _TABLE.c.state == TableState.STALE)
                .values(source_oid=source_oid, settings=dict(settings), published_as=published_as)
            )

    def follow(self, table_id: int, *, source_oid: int, published_as: str | None, stale: str | None) -> None:
        """Sets the table's state to that of a cut file that is newer than the store.

        `stale`: why the table is stale by now; None if the cut file does not make it stale.
        """
        with self.database.transaction("table.follow") as connection:
            if stale is not None:
                mark_stale(connection, [table_id], stale)
            values = {"source_oid": source_oid, "published_as": published_as}
            connection.execute(update(_TABLE).where(_TABLE.c.table_id == table_id).values(**values))

    def begin_stream_again(self, stream: Stream, *, position: str, reason: str) -> None:
        """Continues the stream at `position` and marks all its tables as stale. The present consumer gets StaleEpoch.

        Raises RegistryError, without effect, when the stream is registered beyond `position`.
        """
        with self.database.transaction("stream.begin_again") as connection:
            rows = locked_partitions(connection, stream.name)
            last = connection.scalar(select(func.max(_BOUNDARY.c.position)).where(_BOUNDARY.c.stream == stream.name))
            registered = max((known for known in (last, *(row.next_offset for row in rows)) if known), default="")
            if position < registered:
                raise RegistryError(
                    f"the source's log is at {position}",
                    expected=f"a position after {registered}, up to which the stream is registered",
                    remedy="somebody else reads the stream: stop the consumer, then try again",
                )
            connection.execute(
                update(_STREAM)
                .where(_STREAM.c.name == stream.name)
                .values(
                    source_system_identifier=stream.source_system_identifier,
                    source_timeline=stream.source_timeline,
                    slot=stream.slot,
                )
            )
            connection.execute(
                update(_PARTITION)
                .where(_PARTITION.c.stream == stream.name)
                .values(
                    next_offset=position,
                    assignment_epoch=_PARTITION.c.assignment_epoch + 1,
                    assignment_owner=None,
                    alarm=None,
                )
            )
            tables = connection.scalars(select(_TABLE.c.table_id).where(_TABLE.c.stream == stream.name)).all()
            mark_stale(connection, list(tables), reason)


def mark_stale(connection: Connection, table_ids: list[int], reason: str, *, snapshot_wanted: bool = False) -> None:
    """Like `StaleTables.mark`, in the caller's transaction."""
    halt(connection, _TABLE.c.table_id.in_(table_ids))
    connection.execute(
        update(_TABLE)
        .where(_TABLE.c.table_id.in_(table_ids))
        .values(state=TableState.STALE, state_reason=reason, published_as=None, snapshot_wanted=snapshot_wanted)
    )
    abandoned = connection.scalars(
        update(_SNAPSHOT)
        .where(_SNAPSHOT.c.table_id.in_(table_ids), _SNAPSHOT.c.state.not_in(FINISHED_SNAPSHOTS))
        .values(state=SnapshotState.ABANDONED, finished_at=func.clock_timestamp(), error=reason)
        .returning(_SNAPSHOT.c.snapshot_id)
    ).all()
    for snapshot_id in abandoned:
        drop_events_of_snapshot(connection, snapshot_id)


def mark_gaps(connection: Connection, cut: Cut, too_late: Collection[int]) -> None:
    """Marks tables of the cut as stale if they were last read up to a position before the start of the cut.

    The changes in between are lost. Likewise tables with a slice that must not be applied: `too_late`, those of which
    the cut has events below the tombstone horizon. A table that the lake does not have yet is not marked: its snapshot
    comes later. Call this before the cut is registered.
    """
    for row in connection.execute(_FOLLOWED, {"tables": list(cut.tables)}).all():
        if row.followed is not None and row.followed < cut.start:
            mark_stale(connection, [row.table_id], gap_reason(row.followed, cut.start))
        elif row.table_id in too_late:
            mark_stale(connection, [row.table_id], late_reason(cut.position))
