"""Tables that the stream no longer tells whole: marked, and begun again by a new snapshot."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select, update

from cdc_pipeline.errors import RegistryError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.ledger.halts import halt
from cdc_pipeline.metadata_store.ledger.quarantine import forget_snapshot
from cdc_pipeline.metadata_store.ledger.records import Stream
from cdc_pipeline.metadata_store.models.states import FINISHED_SNAPSHOTS, SnapshotState, TableState

_TABLE, _SNAPSHOT, _PARTITION = models.source_table, models.snapshot, models.stream_partition
_STREAM, _BOUNDARY = models.stream, models.boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleTables:
    database: Database

    def mark(self, table_id: int, reason: str, *, snapshot_wanted: bool = False) -> None:
        """From now on its events are not read and its slices not applied. A snapshot under way is abandoned.

        `snapshot_wanted`: a new one is taken without anybody asking for it.
        """
        with self.database.transaction("table.mark_stale") as connection:
            mark_stale(connection, [table_id], reason, snapshot_wanted=snapshot_wanted)

    def want_snapshot(self, table_id: int, *, wanted: bool) -> None:
        """Of a table that is stale already: whether a new snapshot is taken without anybody asking for it."""
        with self.database.transaction("table.want_snapshot") as connection:
            connection.execute(update(_TABLE).where(_TABLE.c.table_id == table_id).values(snapshot_wanted=wanted))

    def begin_again(
        self, table_id: int, *, source_oid: int, settings: Mapping[str, Any], publication_mark: str
    ) -> None:
        """Its events are read again, as those of this table of the source, for the snapshot that is to come.

        The table stays stale until that is published. Idempotent.
        """
        with self.database.transaction("table.begin_again") as connection:
            connection.execute(
                update(_TABLE)
                .where(_TABLE.c.table_id == table_id, _TABLE.c.state == TableState.STALE)
                .values(source_oid=source_oid, settings=dict(settings), publication_mark=publication_mark)
            )

    def follow(self, table_id: int, *, source_oid: int, publication_mark: str | None, stale: str | None) -> None:
        """What a cut file tells of the table, to a store that is older; `stale` is why it is, None if it is not."""
        with self.database.transaction("table.follow") as connection:
            if stale is not None:
                mark_stale(connection, [table_id], stale)
            told = {"source_oid": source_oid, "publication_mark": publication_mark}
            connection.execute(update(_TABLE).where(_TABLE.c.table_id == table_id).values(**told))

    def begin_stream_again(self, stream: Stream, *, position: str, reason: str) -> None:
        """The stream goes on at `position`, and every table of it is stale; whoever reads it gets StaleEpoch.

        Raises RegistryError, without effect, for a position that is not behind all that is registered.
        """
        with self.database.transaction("stream.begin_again") as connection:
            rows = connection.execute(
                select(_PARTITION).where(_PARTITION.c.stream == stream.name).with_for_update()
            ).all()
            last = connection.scalar(select(func.max(_BOUNDARY.c.position)).where(_BOUNDARY.c.stream == stream.name))
            passed = max((place for place in (last, *(row.next_offset for row in rows)) if place), default="")
            if position < passed:
                raise RegistryError(
                    f"the source's log stands at {position}",
                    expected=f"a position behind {passed}, up to which the stream is registered",
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
    """In the caller's transaction; see `StaleTables.mark`."""
    halt(connection, _TABLE.c.table_id.in_(table_ids))
    connection.execute(
        update(_TABLE)
        .where(_TABLE.c.table_id.in_(table_ids))
        .values(state=TableState.STALE, parked_reason=reason, publication_mark=None, snapshot_wanted=snapshot_wanted)
    )
    abandoned = connection.scalars(
        update(_SNAPSHOT)
        .where(_SNAPSHOT.c.table_id.in_(table_ids), _SNAPSHOT.c.state.not_in(FINISHED_SNAPSHOTS))
        .values(state=SnapshotState.ABANDONED, finished_at=func.clock_timestamp(), error=reason)
        .returning(_SNAPSHOT.c.snapshot_id)
    ).all()
    for snapshot_id in abandoned:
        forget_snapshot(connection, snapshot_id)
