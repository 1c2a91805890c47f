"""Reads quarantined events, drops them for good, or replays them as a late slice."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Text, any_, cast, false, insert, or_, select, update
from sqlalchemy.dialects.postgresql import ARRAY

from cdc_pipeline.areas import is_of_repair
from cdc_pipeline.errors import RegistryError, UsageError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStream, as_record
from cdc_pipeline.metadata_store.leases import Lease, hold_lease
from cdc_pipeline.metadata_store.ledger.cut import LateSlice, Slice, late_identity, late_reason
from cdc_pipeline.metadata_store.ledger.lake_positions import last_boundary
from cdc_pipeline.metadata_store.ledger.quarantine_decisions import decide, drop_waiting
from cdc_pipeline.metadata_store.ledger.records import Boundary, SourceTable
from cdc_pipeline.metadata_store.ledger.stale_tables import mark_stale
from cdc_pipeline.metadata_store.ledger.streams import lock_stream
from cdc_pipeline.metadata_store.ledger.tables import read_table
from cdc_pipeline.metadata_store.ledger.tombstone_horizon import check_tombstone_horizons
from cdc_pipeline.metadata_store.states import QuarantineState, TableState
from cdc_pipeline.record import encode_position

_EVENT, _SLICE, _TABLE = models.quarantine, models.slice_table, models.source_table
_PARTITION, _BOUNDARY = models.stream_partition, models.boundary
_IDENTITY = (_EVENT.c.quarantine_id, _EVENT.c.state, _EVENT.c.snapshot_id, _EVENT.c.place)
MOST_REPLAYED = 5_000
"""Events that one late slice replays: it is registered long before the server could end the session as idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineEntry:
    """A quarantined event. `payload`: its operation, and its values in the source's text format.

    `snapshot_id`: the snapshot that it is a row of; None for an event of the stream. `place`: identifies the event
    within its cut, or the row within its snapshot. `slice_number`: the late slice that replayed it. `decision`: why it
    was dropped.
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
    place: str
    slice_number: int | None
    decision: str | None
    decided_at: datetime | None


class Quarantine(OfStream):
    """Reads and changes quarantined events of one stream's tables."""

    def entries(
        self,
        *,
        table_id: int | None = None,
        stream_partition: int | None = None,
        ids: Sequence[int] | None = None,
        state: QuarantineState | None = None,
        after: int = 0,
        most: int | None = None,
    ) -> tuple[QuarantineEntry, ...]:
        """Returns the stream's quarantined events, ordered by id.

        All, or only those of a table, of a stream partition, of these ids, in a state.

        `most`: the first events of these behind the id `after`.
        """
        query = select(_EVENT).where(self._of_stream()).order_by(_EVENT.c.quarantine_id)
        query = query if table_id is None else query.where(_EVENT.c.table_id == table_id)
        query = query if stream_partition is None else query.where(_EVENT.c.stream_partition == stream_partition)
        query = query if ids is None else query.where(_EVENT.c.quarantine_id.in_(ids))
        query = query if state is None else query.where(_EVENT.c.state == state)
        with self.database.transaction("quarantine.read") as connection:
            rows = connection.execute(query.where(_EVENT.c.quarantine_id > after).limit(most)).all()
        return tuple(as_record(QuarantineEntry, row) for row in rows)

    def waiting(self) -> Iterator[tuple[QuarantineEntry, ...]]:
        """Yields all events that wait: of one table and stream partition, as many at a time as a late slice replays."""
        waits = _EVENT.c.state == QuarantineState.WAITING
        groups = select(_EVENT.c.table_id, _EVENT.c.stream_partition).where(waits, self._of_stream())
        with self.database.transaction("quarantine.read") as connection:
            found = connection.execute(groups.distinct().order_by(*groups.selected_columns)).all()
        for table_id, stream_partition in found:
            of_group, after = partial(self.entries, table_id=table_id, stream_partition=stream_partition), 0
            while events := of_group(state=QuarantineState.WAITING, after=after, most=MOST_REPLAYED):
                yield events
                after = events[-1].quarantine_id

    def entry(self, quarantine_id: int) -> QuarantineEntry:
        """Returns the quarantined event. Raises UsageError when there is none."""
        return self.chosen([quarantine_id])[0]

    def chosen(self, quarantine_ids: Sequence[int]) -> tuple[QuarantineEntry, ...]:
        """Returns the events of these ids, in this order, each once. Raises UsageError for an id that no event has."""
        found = {entry.quarantine_id: entry for entry in self.entries(ids=quarantine_ids)}
        unknown = [quarantine_id for quarantine_id in quarantine_ids if quarantine_id not in found]
        if unknown:
            raise UsageError(
                f"there is no event {unknown[0]} in quarantine", expected="an id that cdc quarantine ls shows"
            )
        return tuple(found[quarantine_id] for quarantine_id in dict.fromkeys(quarantine_ids))

    def _of_stream(self) -> ColumnElement[bool]:
        return _EVENT.c.table_id.in_(select(_TABLE.c.table_id).where(_TABLE.c.stream == self.stream))

    def late_slice(self, new: Slice, quarantine_ids: Sequence[int]) -> LateSlice:
        """Describes the late slice that replays these events; registers nothing.

        Raises RegistryError for an event that is already replayed or dropped.
        """
        with self.database.transaction("quarantine.read") as connection:
            table = read_table(connection, _TABLE.c.table_id == new.table_id, f"number {new.table_id}")
            slice_id = late_identity(table.table_uuid, quarantine_ids, new.sha256)
            entries = _locked_entries(connection, quarantine_ids)
            if _number_of(connection, slice_id, new.table_id) is None:
                _check_waiting(entries)
        events = tuple((entry.snapshot_id, entry.place) for entry in entries)
        return LateSlice(slice=new, slice_id=slice_id, events=events)

    def number_or_open(self, late: LateSlice, lease: Lease) -> int | None:
        """Returns the number of a late slice; None when it is not registered, and its events wait.

        Raises RegistryError for an event that is already replayed or dropped, or older than the table's tombstone
        horizon; StaleEpoch when another owner has the `lease`.
        """
        table_id = late.slice.table_id
        with self.database.transaction("quarantine.read") as connection:
            known = _number_of(connection, late.slice_id, table_id)
            if known is not None:
                return known
            hold_lease(connection, lease)
            table = read_table(connection, _TABLE.c.table_id == table_id, f"number {table_id}")
            check_tombstone_horizons([late.slice], {table_id: table.horizon})
            named = select(*_IDENTITY).where(_named(table_id, late.events))
            _check_waiting(connection.execute(named.order_by(_EVENT.c.quarantine_id)).all())
        return None

    def replay(self, late: LateSlice, chain_position: str, lease: Lease | None) -> int:
        """Registers a late slice and marks its events as replayed, in one transaction. Returns its number. Idempotent.

        The cut file at `chain_position` has already decided the late slice, so the state of its events does not matter.
        `lease` None: the late slice was read from a cut file. The table becomes stale if it is below its tombstone
        horizon, as with a cut.
        Raises RegistryError when the chain continues at another position, when an event is older than the table's
        tombstone horizon, or when the stream has no boundary; StaleEpoch when another owner has the given `lease`.
        """
        new = late.slice
        with self.database.transaction("quarantine.replay") as connection:
            table = _locked_table(connection, new.table_id, lease)
            known = _number_of(connection, late.slice_id, new.table_id)
            if known is not None:
                return known
            boundary = _boundary_at(connection, table.stream, chain_position)
            if lease is None and new.is_below(table.horizon):
                if table.state not in {TableState.REGISTERED, TableState.STALE}:
                    mark_stale(connection, [new.table_id], late_reason(boundary.position))
            else:
                check_tombstone_horizons([new], {new.table_id: table.horizon})
            number = table.next_slice_number
            _insert_late(connection, new, boundary, late.slice_id, number)
            if is_of_repair(new.path):  # its registration ends the repair
                connection.execute(update(_TABLE).where(_TABLE.c.table_id == new.table_id).values(under_repair=False))
            decide(connection, _named(new.table_id, late.events), QuarantineState.REPLAYED, slice_number=number)
        return number

    def drop(self, lease: Lease, quarantine_ids: Sequence[int], reason: str) -> None:
        """Marks events of the leased table as dropped for good, in one transaction; they can still be read. Idempotent.

        Raises UsageError for an unknown id, RegistryError for a replayed event, StaleEpoch when another owner has the
        `lease`.
        """
        self.chosen(quarantine_ids)
        with self.database.transaction("quarantine.drop") as connection:
            hold_lease(connection, lease)
            entries = _locked_entries(connection, quarantine_ids)
            left = [entry for entry in entries if entry.state is not QuarantineState.DROPPED]
            _check_waiting(left)
            which = _EVENT.c.quarantine_id.in_([entry.quarantine_id for entry in left])
            decide(connection, which, QuarantineState.DROPPED, decision=reason)

    def drop_waiting_of(self, lease: Lease, reason: str) -> int:
        """Drops all events of the leased table that wait, likewise; returns their number."""
        with self.database.transaction("quarantine.drop") as connection:
            hold_lease(connection, lease)
            return drop_waiting(connection, _EVENT.c.table_id == lease.table_id, reason)


def no_boundary(stream: str) -> RegistryError:
    return RegistryError(
        f"the stream {stream} has no boundary yet",
        expected="one that the replayed events can lie at",
        remedy="start the consumer, or run cdc consume --until-idle, then replay again",
    )


def _locked_table(connection: Connection, table_id: int, lease: Lease | None) -> SourceTable:
    """Locks the stream, then the lease, then the table, as a rebuild does: another order could cause a deadlock."""
    which, words = _TABLE.c.table_id == table_id, f"number {table_id}"
    lock_stream(connection, read_table(connection, which, words).stream)
    if lease is not None:
        hold_lease(connection, lease)
    return read_table(connection, which, words, lock=True)


def _locked_entries(connection: Connection, quarantine_ids: Sequence[int]) -> Sequence[Row[*tuple[Any, ...]]]:
    query = select(*_IDENTITY).where(_EVENT.c.quarantine_id.in_(quarantine_ids)).order_by(_EVENT.c.quarantine_id)
    return connection.execute(query.with_for_update()).all()


def _check_waiting(entries: Sequence[Row[*tuple[Any, ...]]]) -> None:
    for entry in entries:
        if entry.state is not QuarantineState.WAITING:
            raise RegistryError(
                f"the event {entry.quarantine_id} in quarantine is {entry.state}",
                expected="one that waits",
                remedy="look at cdc quarantine show: somebody else decided",
            )


def _boundary_at(connection: Connection, stream: str, chain_position: str) -> Boundary:
    """Returns the stream's last boundary. Raises RegistryError if the chain continues at another position."""
    last = last_boundary(connection, stream)
    if last is None:
        raise no_boundary(stream)
    if last.chain_position != chain_position:
        raise RegistryError(
            f"the chain of the stream {stream} continues at {last.chain_position}",
            expected=f"{chain_position}, where the late slice is decided",
            remedy="try again: somebody else registered something",
        )
    return last


def _number_of(connection: Connection, slice_id: str, table_id: int) -> int | None:
    query = select(_SLICE.c.number).where(_SLICE.c.table_id == table_id, _SLICE.c.slice_id == slice_id)
    return connection.scalar(query)


def _named(table_id: int, events: Sequence[tuple[str | None, str]]) -> ColumnElement[bool]:
    places: dict[str | None, list[str]] = {}
    for snapshot_id, place in events:
        places.setdefault(snapshot_id, []).append(place)
    # One array per snapshot, and not a condition per event: a statement of many conditions takes minutes to build.
    named = [
        (_EVENT.c.snapshot_id == snapshot_id) & (_EVENT.c.place == any_(cast(found, ARRAY(Text))))
        for snapshot_id, found in places.items()
    ]
    return (_EVENT.c.table_id == table_id) & or_(false(), *named)


def _insert_late(connection: Connection, new: Slice, boundary: Boundary, slice_id: str, number: int) -> None:
    """Inserts the slice at the stream's last boundary, with a zero-length range at the end of its stream partition."""
    of_partition = (_PARTITION.c.stream == boundary.stream) & (_PARTITION.c.stream_partition == new.stream_partition)
    # a rebuilt store knows no offset where no cut names the stream partition
    offset = connection.scalar(select(_PARTITION.c.next_offset).where(of_partition)) or encode_position(0)
    values = {
        **new.columns(),
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
