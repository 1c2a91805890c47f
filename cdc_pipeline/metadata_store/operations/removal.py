"""Removes a table, or a stream with its tables, from the store: every row, while nobody works on them."""

from collections.abc import Sequence

from sqlalchemy import Connection, delete, func, select, text

from cdc_pipeline.errors import LeaseBusy
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore
from cdc_pipeline.metadata_store.ledger.consumers import is_read
from cdc_pipeline.metadata_store.ledger.stale_tables import SILENCE
from cdc_pipeline.metadata_store.ledger.streams import lock_stream
from cdc_pipeline.record import TableName

_TABLE, _LEASE, _CONSUMER = models.source_table, models.lease, models.consumer
_SNAPSHOT, _TASK, _STREAM = models.snapshot, models.snapshot_task, models.stream
_CHILDREN_FIRST = models.metadata.sorted_tables[::-1]
"""Rows that refer to other rows are deleted first."""
_AT_WORK = """
    SELECT task.slot, task.lease_expires_at
    FROM cdc.snapshot_task AS task JOIN cdc.snapshot USING (snapshot_id)
    WHERE snapshot.table_id = ANY(:tables) AND task.state = 'claimed' AND task.lease_expires_at > clock_timestamp()
    LIMIT 1
"""
_TAKEN = f"""
    SELECT snapshot_id, until
    FROM (
        SELECT taken.snapshot_id,
               max(greatest(run.started_at, run.finished_at,
                            task.created_at, task.finished_at, task.lease_expires_at)) + {SILENCE} AS until
        FROM cdc.snapshot AS taken
        JOIN cdc.snapshot AS run ON split_part(run.snapshot_id, '-', 2) = split_part(taken.snapshot_id, '-', 2)
        LEFT JOIN cdc.snapshot_task AS task ON task.snapshot_id = run.snapshot_id
        WHERE taken.table_id = ANY(:tables) AND taken.state NOT IN ('published', 'failed', 'abandoned')
        GROUP BY taken.snapshot_id
    ) AS signs
    WHERE until > clock_timestamp()
    ORDER BY until DESC
    LIMIT 1
"""
"""The active snapshot of one of the tables whose run is alive.

Tasks of a table may wait for long while the worker slots do those of its neighbours. So the leases and tasks of all
snapshots of the run count; their ids have the run's id in common.
"""


class Removal(OfStore):
    def check_idle(self, stream: str, name: TableName | None = None) -> None:
        """Raises LeaseBusy while somebody works on the table, or without a name on any table of the stream.

        A consumer works on all tables of its stream: one that shares it, until it has gone or has given no sign for
        some seconds; one that reads alone, until it has gone. A database refuses the removal itself while somebody
        holds its slot or its lock.
        """
        with self.database.transaction("removal.check") as connection:
            _refuse_held(connection, stream, _tables(connection, stream, name))

    def remove_table(self, stream: str, name: TableName) -> bool:
        """Returns whether there was such a table. Raises LeaseBusy while somebody works on it."""
        with self.database.transaction("table.remove") as connection:
            lock_stream(connection, stream)
            tables = _tables(connection, stream, name)
            _remove(connection, stream, tables)
        return bool(tables)

    def remove_stream(self, stream: str) -> bool:
        """Returns whether there was such a stream. Its reader cannot register anything any more.

        Raises LeaseBusy while somebody works on one of its tables.
        """
        with self.database.transaction("stream.remove") as connection:
            lock_stream(connection, stream)
            _remove(connection, stream, _tables(connection, stream, None))
            for each in _CHILDREN_FIRST:
                if "stream" in each.c:
                    connection.execute(delete(each).where(each.c.stream == stream))
            deleted = connection.execute(delete(_STREAM).where(_STREAM.c.name == stream)).rowcount
        return bool(deleted)


def _tables(connection: Connection, stream: str, name: TableName | None) -> Sequence[int]:
    """Locks the leases of the tables, then the tables, until the transaction ends. Returns the tables' ids.

    Workers lock both in this order; in another order each could wait for the other. Leases that have expired are locked
    too, so that nobody acquires one.
    """
    query = select(_TABLE.c.table_id).where(_TABLE.c.stream == stream)
    if name is not None:
        query = query.where(
            _TABLE.c.database_name == name.database,
            _TABLE.c.schema_name == name.schema,
            _TABLE.c.table_name == name.table,
        )
    leases = select(_LEASE.c.table_id).where(_LEASE.c.table_id.in_(query))
    connection.execute(leases.order_by(_LEASE.c.table_id).with_for_update())
    return connection.scalars(query.order_by(_TABLE.c.table_id).with_for_update()).all()


def _refuse_held(connection: Connection, stream: str, tables: Sequence[int]) -> None:
    alive = _CONSUMER.c.expires_at > func.clock_timestamp()
    reader = connection.execute(
        select(_CONSUMER.c.owner, _CONSUMER.c.expires_at).where(_CONSUMER.c.stream == stream, alive).limit(1)
    ).first()
    found = f"a consumer reads the stream {stream}" if reader is None and is_read(connection, stream) else None
    if reader is not None:
        until = f"{reader.expires_at:%Y-%m-%dT%H:%M:%SZ}"
        found = f"the consumer {reader.owner} reads the stream {stream}, and is alive until {until}"
    if found is not None:
        raise LeaseBusy(
            found,
            expected="nobody who registers more of what is to be removed",
            remedy="stop all consumers of the pipeline, then remove it again",
        )
    leases = connection.execute(  # also a table's first one, if it came before the table was locked
        select(_LEASE.c.owner, _LEASE.c.expires_at, func.clock_timestamp().label("now"))
        .where(_LEASE.c.table_id.in_(tables))
        .order_by(_LEASE.c.table_id)
    ).all()
    held = next((lease for lease in leases if lease.expires_at > lease.now), None)
    held = held or connection.execute(text(_AT_WORK), {"tables": list(tables)}).first()
    if held is not None:
        raise LeaseBusy(
            f"{held[0]} is at work until {held[1]:%Y-%m-%dT%H:%M:%SZ}",
            expected="nobody at work on what is to be removed",
            remedy="pause its DAGs, wait for the end of its run, then remove it again",
        )
    taken = connection.execute(text(_TAKEN), {"tables": list(tables)}).first()
    if taken is not None:
        raise LeaseBusy(
            f"the snapshot {taken.snapshot_id} is being taken; if its run was killed, it counts so until"
            f" {taken.until:%Y-%m-%dT%H:%M:%SZ}",
            expected="no snapshot under way of what is to be removed",
            remedy="wait for the end of its run, then remove it again",
        )


def _remove(connection: Connection, stream: str, tables: Sequence[int]) -> None:
    _refuse_held(connection, stream, tables)
    snapshots = select(_SNAPSHOT.c.snapshot_id).where(_SNAPSHOT.c.table_id.in_(tables))
    connection.execute(delete(_TASK).where(_TASK.c.snapshot_id.in_(snapshots)))
    for each in _CHILDREN_FIRST:
        if "table_id" in each.c:
            connection.execute(delete(each).where(each.c.table_id.in_(tables)))
