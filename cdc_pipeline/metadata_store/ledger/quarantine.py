"""Events that could not be applied, kept whole until somebody replays or drops them."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, false, func, insert, or_, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or

from cdc_pipeline.errors import RegistryError, StaleEpoch, UsageError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.leases import Lease, hold_lease
from cdc_pipeline.metadata_store.ledger.cut import BEGINNING, LateSlice, Slice, late_identity
from cdc_pipeline.metadata_store.ledger.streams import locked_partitions, read_chain_position
from cdc_pipeline.metadata_store.ledger.tombstone_horizon import check_tombstone_horizons
from cdc_pipeline.metadata_store.models.states import FINISHED_SNAPSHOTS, QuarantineState
from cdc_pipeline.metadata_store.snapshots.records import Snapshot

_ENTRY, _SLICE, _TABLE = models.quarantine, models.slice_table, models.source_table
_PARTITION, _BOUNDARY = models.stream_partition, models.boundary
SNAPSHOT_PARTITION = 0
"""Rows of a snapshot come from no stream partition; their replay goes with this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineEntry:
    """An event in quarantine. `payload`: its values as the source's texts, and what it does to the table.

    `snapshot_id`: it is a row of this snapshot. `slice_number`: the late slice that a replay made of it.
    `decision`: why it was dropped.
    """

    quarantine_id: int
    table_id: int
    stream_partition: int
    version: str
    start_offset: str
    end_offset: str
    reason: str
    column: str
    payload: dict[str, str | None]
    state: QuarantineState
    created_at: datetime
    snapshot_id: str | None
    place: str | None
    slice_number: int | None
    decision: str | None
    decided_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedRow:
    """A row of a snapshot that cannot be one of the lake's."""

    column: str
    reason: str
    payload: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Of the tables of one stream."""

    database: Database
    stream: str

    def entries(
        self, *, table_id: int | None = None, ids: Sequence[int] | None = None, state: QuarantineState | None = None
    ) -> tuple[QuarantineEntry, ...]:
        """By id: all of them, or those of a table, with these ids, in a state."""
        of_stream = select(_TABLE.c.table_id).where(_TABLE.c.stream == self.stream)
        query = select(_ENTRY).where(_ENTRY.c.table_id.in_(of_stream)).order_by(_ENTRY.c.quarantine_id)
        query = query if table_id is None else query.where(_ENTRY.c.table_id == table_id)
        query = query if ids is None else query.where(_ENTRY.c.quarantine_id.in_(ids))
        query = query if state is None else query.where(_ENTRY.c.state == state)
        with self.database.transaction("quarantine.read") as connection:
            return tuple(QuarantineEntry(**row._asdict()) for row in connection.execute(query))

    def entry(self, quarantine_id: int) -> QuarantineEntry:
        """Raises UsageError when there is none."""
        found = self.entries(ids=[quarantine_id])
        if not found:
            raise _unknown(quarantine_id)
        return found[0]

    def keep_snapshot_rows(self, snapshot: Snapshot, ordinal: int, rows: Sequence[QuarantinedRow]) -> None:
        """Idempotent for the rows of one export task, in whatever order they come."""
        seen: Counter[str] = Counter()
        values = []
        for row in rows:
            digest = hashlib.sha256(json.dumps(row.payload, sort_keys=True).encode()).hexdigest()
            values.append(
                {
                    "table_id": snapshot.table_id,
                    "stream_partition": SNAPSHOT_PARTITION,
                    "version": snapshot.cutoff_version,
                    "start_offset": snapshot.cutoff_offset,
                    "end_offset": snapshot.cutoff_offset,
                    "snapshot_id": snapshot.snapshot_id,
                    "place": f"{ordinal}-{digest}-{seen[digest]}",
                    **asdict(row),
                }
            )
            seen[digest] += 1
        with self.database.transaction("quarantine.keep") as connection:
            _check_active(connection, snapshot)
            connection.execute(insert_or(_ENTRY).on_conflict_do_nothing(), values)

    def late_slice(self, new: Slice, quarantine_ids: Sequence[int]) -> LateSlice:
        """What holds these events from now on, to be registered. Raises RegistryError for one that does not wait."""
        with self.database.transaction("quarantine.read") as connection:
            uuid = connection.execute(select(_TABLE.c.table_uuid).where(_TABLE.c.table_id == new.table_id)).scalar_one()
            slice_id = late_identity(uuid, quarantine_ids, new.sha256)
            entries = _locked_entries(connection, quarantine_ids)
            if _known_late(connection, slice_id, new.table_id) is None:
                _check_waiting(entries)
        events = tuple((entry.snapshot_id, entry.place) for entry in entries)
        return LateSlice(slice=new, slice_id=slice_id, events=events)

    def number_of(self, late: LateSlice) -> int | None:
        """None: it is not registered."""
        with self.database.transaction("quarantine.read") as connection:
            return _known_late(connection, late.slice_id, late.slice.table_id)

    def replay(self, late: LateSlice, place: str, *, lease: Lease | None = None) -> int:
        """Number of the late slice; in one transaction its events are replayed and it is registered. Idempotent.

        The cut file at `place` has decided it, whatever became of the events since. Raises RegistryError when the
        stream goes on elsewhere, when an event is older than the table's horizon, or without a boundary; StaleEpoch
        when somebody else has the `lease`, where one is given.
        """
        new = late.slice
        with self.database.transaction("quarantine.replay") as connection:
            if lease is not None:
                hold_lease(connection, lease)
            table = _locked(connection, new.table_id)
            known = _known_late(connection, late.slice_id, new.table_id)
            if known is not None:
                return known
            _check_place(connection, table.stream, place)
            check_tombstone_horizons([new], {new.table_id: table.horizon})
            number = int(table.next_slice_number)
            _insert_late(connection, new, table.stream, late.slice_id, number)
            if not late.events:
                connection.execute(update(_TABLE).where(_TABLE.c.table_id == new.table_id).values(under_repair=False))
            _decide(connection, _named(new.table_id, late.events), QuarantineState.REPLAYED, slice_number=number)
        return number

    def drop(self, quarantine_id: int, reason: str) -> QuarantineEntry:
        """The event is given up for good, and stays to be read. Idempotent. Raises RegistryError for a replayed one."""
        self.entry(quarantine_id)
        with self.database.transaction("quarantine.drop") as connection:
            (entry,) = _locked_entries(connection, [quarantine_id])
            if entry.state is not QuarantineState.DROPPED:
                _check_waiting([entry])
                _decide(connection, _ENTRY.c.quarantine_id == quarantine_id, QuarantineState.DROPPED, decision=reason)
        return self.entry(quarantine_id)


def _check_active(connection: Connection, snapshot: Snapshot) -> None:
    """What an ended snapshot kept aside is decided on already."""
    of_snapshot = models.snapshot.c.snapshot_id == snapshot.snapshot_id
    state = connection.scalar(select(models.snapshot.c.state).where(of_snapshot).with_for_update(key_share=True))
    if state in FINISHED_SNAPSHOTS:
        raise StaleEpoch(
            f"the snapshot {snapshot.snapshot_id} is {state}",
            expected="one that is being taken",
            remedy="drop the task: nothing of it is needed any more",
        )


def supersede(connection: Connection, snapshot: Snapshot) -> None:
    """A published snapshot holds, or keeps aside itself, everything that came before its cutoff."""
    older = (_ENTRY.c.table_id == snapshot.table_id) & (_ENTRY.c.version < snapshot.cutoff_version)
    reason = f"the snapshot {snapshot.snapshot_id} has a later cutoff"
    _drop_waiting(connection, older, reason)


def forget_snapshot(connection: Connection, snapshot_id: str) -> None:
    """What a snapshot kept aside goes with it when it never becomes the lake's table."""
    _drop_waiting(connection, _ENTRY.c.snapshot_id == snapshot_id, f"the snapshot {snapshot_id} was not published")


def _drop_waiting(connection: Connection, which: ColumnElement[bool], reason: str) -> None:
    connection.execute(
        update(_ENTRY)
        .where(which, _ENTRY.c.state == QuarantineState.WAITING)
        .values(state=QuarantineState.DROPPED, decision=reason, decided_at=func.clock_timestamp())
    )


def _locked(connection: Connection, table_id: int) -> Row[*tuple[Any, ...]]:
    """Locks in the order of a cut's registration, so that neither waits for the other for ever."""
    stream = connection.scalar(select(_TABLE.c.stream).where(_TABLE.c.table_id == table_id))
    locked_partitions(connection, stream or "")
    return connection.execute(
        select(_TABLE.c.stream, _TABLE.c.table_uuid, _TABLE.c.next_slice_number, _TABLE.c.horizon)
        .where(_TABLE.c.table_id == table_id)
        .with_for_update()
    ).one()


def _locked_entries(connection: Connection, quarantine_ids: Sequence[int]) -> Sequence[Row[Any]]:
    query = select(_ENTRY).where(_ENTRY.c.quarantine_id.in_(quarantine_ids)).order_by(_ENTRY.c.quarantine_id)
    return connection.execute(query.with_for_update()).all()


def _check_waiting(entries: Sequence[Row[Any]]) -> None:
    for entry in entries:
        if entry.state is not QuarantineState.WAITING:
            raise RegistryError(
                f"the event {entry.quarantine_id} in quarantine is {entry.state}",
                expected="one that waits",
                remedy="look at cdc quarantine show: somebody else decided",
            )


def _check_place(connection: Connection, stream: str, place: str) -> None:
    found = read_chain_position(connection, stream)
    if found == BEGINNING:
        raise no_boundary(stream)
    if found != place:
        raise RegistryError(
            f"the stream {stream} goes on at {found}",
            expected=f"{place}, where a late slice is to be registered",
            remedy="try again: somebody else registered something",
        )


def _known_late(connection: Connection, slice_id: str, table_id: int) -> int | None:
    query = select(_SLICE.c.number).where(_SLICE.c.table_id == table_id, _SLICE.c.slice_id == slice_id)
    known = connection.scalar(query)
    return None if known is None else int(known)


def _named(table_id: int, events: Sequence[tuple[str | None, str]]) -> ColumnElement[bool]:
    named = [_ENTRY.c.snapshot_id.is_not_distinct_from(snapshot) & (_ENTRY.c.place == at) for snapshot, at in events]
    return (_ENTRY.c.table_id == table_id) & or_(false(), *named)


def _insert_late(connection: Connection, new: Slice, stream: str, slice_id: str, number: int) -> None:
    boundary = connection.execute(
        select(_BOUNDARY).where(_BOUNDARY.c.stream == stream).order_by(_BOUNDARY.c.position.desc()).limit(1)
    ).one()
    offset = connection.scalar(
        select(_PARTITION.c.next_offset).where(
            _PARTITION.c.stream == stream, _PARTITION.c.stream_partition == new.stream_partition
        )
    )
    values = {
        **new.values(),
        "late": True,
        "number": number,
        "slice_id": slice_id,
        "boundary_id": boundary.boundary_id,
        "label_start": boundary.label_start,
        "label_end": boundary.label_end,
        "start_offset": offset,
        "end_offset": offset,
    }
    connection.execute(insert(_SLICE).values(values))
    connection.execute(update(_TABLE).where(_TABLE.c.table_id == new.table_id).values(next_slice_number=number + 1))
    connection.execute(
        update(_BOUNDARY)
        .where(_BOUNDARY.c.boundary_id == boundary.boundary_id)
        .values(late_slices=_BOUNDARY.c.late_slices + 1)
    )


def _decide(connection: Connection, which: ColumnElement[bool], state: QuarantineState, **values: Any) -> None:
    decided_at = func.coalesce(_ENTRY.c.decided_at, func.clock_timestamp())
    connection.execute(update(_ENTRY).where(which).values(state=state, decided_at=decided_at, **values))


def no_boundary(stream: str) -> RegistryError:
    return RegistryError(
        f"the stream {stream} has no boundary yet",
        expected="one that the replayed events can lie at",
        remedy="start the consumer, or run cdc consume --until-idle, then replay again",
    )


def _unknown(quarantine_id: int) -> UsageError:
    return UsageError(f"there is no event {quarantine_id} in quarantine", expected="an id that cdc quarantine ls shows")
