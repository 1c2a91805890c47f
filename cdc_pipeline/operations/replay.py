"""Replays quarantined events: decodes them again with the table's present columns and registers late slices.

Also drops events. Both need the table's lease: so no event is replayed and dropped at once, and no table is removed
while a late slice of it is decided.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import groupby

import structlog

from cdc_pipeline.apply.table_work import TableWork
from cdc_pipeline.consume.event_filter import without_columns
from cdc_pipeline.errors import CdcError, LeaseBusy, UsageError
from cdc_pipeline.metadata_store.database import batches
from cdc_pipeline.metadata_store.lease_keeper import LeaseKeeper
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.metadata_store.ledger.quarantine import MOST_REPLAYED, QuarantineEntry
from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.states import QuarantineState, SnapshotState
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.operations.late_slices import LateSlices
from cdc_pipeline.operations.source_setup.registered import known_table
from cdc_pipeline.operations.table_errors import result_or_error
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.sources.protocol import Source
from cdc_pipeline.sources.quarantined import DecodedEvents
from cdc_pipeline.types import changed_types, resolve, wider, widest

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result for one event. `why`: why it is still quarantined, or why it was dropped."""

    quarantine_id: int
    table_id: int
    state: QuarantineState
    slice_number: int | None
    why: str


@dataclass(slots=True)
class _WaitingTime:
    """The seconds that a call still waits for leases that other processes have. Its own work does not reduce them."""

    work: TableWork
    seconds: float

    @contextmanager
    def leased(self, table_id: int) -> Iterator[tuple[Lease, LeaseKeeper]]:
        with ExitStack() as holding:
            began = time.monotonic()
            try:
                held = holding.enter_context(self.work.leased_when_free(table_id, began + self.seconds))
            finally:
                self.seconds -= time.monotonic() - began
            yield held


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Replays and drops quarantined events. `listed`: the tables of pipeline.yml.

    `timeout`: how long a call waits in all for leases that other processes have.
    """

    listed: frozenset[TableName]
    work: TableWork
    source: Source
    late_slices: LateSlices
    timeout: timedelta = timedelta(minutes=10)

    @property
    def store(self) -> MetadataStore:
        return self.work.store

    def run(self, entries: Iterable[QuarantineEntry]) -> tuple[Replayed, ...]:
        """Decodes events again; returns the results in the order of the events' ids.

        On return, the events that fit are in registered late slices, which the next run applies. The others stay
        quarantined, and so do those of tables whose lease does not become free in time.
        """
        given = sorted(entries, key=lambda entry: (*_group(entry), entry.quarantine_id))
        return self._run(part for _, group in groupby(given, key=_group) for part in batches(group, MOST_REPLAYED))

    def run_waiting(self) -> tuple[Replayed, ...]:
        """Likewise replays all events that wait. It holds those of one late slice at a time."""
        return self._run(self.store.quarantine.waiting())

    def drop(self, quarantine_ids: Sequence[int], reason: str) -> tuple[QuarantineEntry, ...]:
        """Drops these events for good, table by table, except those that a killed replay has decided to replay.

        Idempotent. Raises UsageError for an id that no event has; RegistryError for a replayed event and LeaseBusy for
        a table that does not become free in time, when events of other tables may be dropped.
        """
        left, ids = self._waiting_time(), defaultdict[int, list[int]](list)
        for entry in self.store.quarantine.chosen(quarantine_ids):
            ids[entry.table_id].append(entry.quarantine_id)
        for table_id, of_table in sorted(ids.items()):
            with left.leased(table_id) as (lease, _):
                self.late_slices.chain.catch_up()
                self.store.quarantine.drop(lease, of_table, reason)
        return self.store.quarantine.chosen(quarantine_ids)

    def drop_waiting_of(self, table: TableName, reason: str) -> int:
        """Likewise drops all events of the table that wait; returns their number."""
        table_id = self.store.tables.table(table).table_id
        with self._waiting_time().leased(table_id) as (lease, _):
            self.late_slices.chain.catch_up()
            return self.store.quarantine.drop_waiting_of(lease, reason)

    def _waiting_time(self) -> _WaitingTime:
        return _WaitingTime(self.work, self.timeout.total_seconds())

    def _run(self, parts: Iterable[Sequence[QuarantineEntry]]) -> tuple[Replayed, ...]:
        """`parts`: of one table and stream partition each."""
        left, outcomes = self._waiting_time(), list[Replayed]()
        for part in parts:
            waiting = [entry for entry in part if entry.state is QuarantineState.WAITING]
            outcomes += [_decided(entry) for entry in part if entry.state is not QuarantineState.WAITING]
            outcomes += self._replay_when_free(waiting, left) if waiting else ()
        return tuple(sorted(outcomes, key=lambda outcome: outcome.quarantine_id))

    def _replay_when_free(self, entries: Sequence[QuarantineEntry], left: _WaitingTime) -> list[Replayed]:
        with ExitStack() as held:
            try:
                lease, keeper = held.enter_context(left.leased(entries[0].table_id))
            except (LeaseBusy, UsageError) as error:
                return [_waits(entry, str(error)) for entry in entries]
            return self._replay_group(lease, keeper, [entry.quarantine_id for entry in entries])

    def _replay_group(self, lease: Lease, keeper: LeaseKeeper, quarantine_ids: Sequence[int]) -> list[Replayed]:
        """Replays events of one table and stream partition: one late slice for all with the same columns.

        Reads them again under the lease: another process may have decided about them meanwhile.
        """
        table = self.store.tables.table_by_id(lease.table_id)
        found = self.store.quarantine.entries(ids=quarantine_ids)
        waiting = [entry for entry in found if entry.state is QuarantineState.WAITING]
        refused = self._not_ready(table, waiting)
        ready = [entry for entry in waiting if entry.quarantine_id not in refused]
        columns = self.store.tables.known_columns(table.table_id)
        in_lake = () if table.schema_id is None else columns
        numbers: dict[int, int] = {}
        for decoded in self._decoded_or_refused(table, columns, ready, refused):
            refused |= decoded.refused
            changed = _changed_types(in_lake, decoded.schema)
            if changed:
                refused |= dict.fromkeys(decoded.fitting, changed)
            elif decoded.fitting or decoded.rows.num_rows:
                number = self._register(table, ready[0].stream_partition, decoded, lease, keeper)
                numbers |= dict.fromkeys(decoded.fitting, number)
        return [
            _result(entry, QuarantineState.REPLAYED, numbers[entry.quarantine_id])
            if entry.quarantine_id in numbers
            else _waits(entry, refused[entry.quarantine_id])
            if entry.state is QuarantineState.WAITING
            else _decided(entry)
            for entry in found
        ]

    def _register(
        self, table: SourceTable, stream_partition: int, decoded: DecodedEvents, lease: Lease, keeper: LeaseKeeper
    ) -> int:
        """Registers a late slice of the events that fit, and of what can be applied of others; returns its number.

        If no event fits, and the same rows were registered before, returns the number that they have.
        """
        folder = f"replay-{next(iter((*decoded.fitting, *decoded.refused)))}"
        late = self.late_slices.write(table, stream_partition, folder, decoded.rows, decoded.schema, decoded.fitting)
        number = None
        while number is None:
            number = self.late_slices.chain.register_late(late, decoded.schema, lease, keeper.check)
        log.info("events replayed", table=str(table.name), slice=number, events=len(decoded.fitting))
        return number

    def _decoded_or_refused(
        self,
        table: SourceTable,
        columns: tuple[Column, ...],
        entries: Sequence[QuarantineEntry],
        refused: dict[int, str],
    ) -> Sequence[DecodedEvents]:
        """Adds the events to `refused` if an error ends their decoding, so that those of other tables are replayed."""
        found = result_or_error(
            lambda: self._decode(table, columns, entries) if entries else (),
            table.name,
            otherwise="events not replayed",
        )
        if not isinstance(found, CdcError):
            return found
        refused |= dict.fromkeys((entry.quarantine_id for entry in entries), str(found))
        return ()

    def _decode(
        self, table: SourceTable, columns: tuple[Column, ...], entries: Sequence[QuarantineEntry]
    ) -> Sequence[DecodedEvents]:
        found = self.source.decode_quarantined(
            known_table(self.store, table, columns),
            entries,
            columns=columns,
            stream_partitions=self.store.streams.stream_partitions(table.stream),
        )
        return [_kept(decoded, table.excluded_columns) for decoded in found]

    def _not_ready(self, table: SourceTable, entries: Sequence[QuarantineEntry]) -> dict[int, str]:
        """Returns by id why events cannot be replayed yet.

        A quarantined row of a snapshot has to wait for the snapshot's publication, which brings its other rows into the
        lake. A row of an export is older than every event, so the table's tombstone horizon may have passed it.
        """
        if table.name not in self.listed:
            return {entry.quarantine_id: f"pipeline.yml does not list {table.name}" for entry in entries}
        snapshots = {entry.snapshot_id for entry in entries if entry.snapshot_id is not None}
        states = {snapshot_id: self.store.snapshots.snapshot(snapshot_id).state for snapshot_id in snapshots}
        rows = [(entry, states[entry.snapshot_id]) for entry in entries if entry.snapshot_id is not None]
        found = {entry.quarantine_id: _why_not(table, entry, state) for entry, state in rows}
        return {quarantine_id: why for quarantine_id, why in found.items() if why}


def _why_not(table: SourceTable, row: QuarantineEntry, state: SnapshotState) -> str:
    """Returns why a row of a snapshot cannot be replayed; "" if it can. `state`: of the snapshot."""
    if state is not SnapshotState.PUBLISHED:
        return f"its snapshot {row.snapshot_id} is {state}"
    if row.version < table.horizon:
        words = f"it is too late: older than {table.horizon}, below which tombstones may be gone"
        return f"{words}; correct the export and run cdc snapshot again, or drop the row"
    return ""


def _group(entry: QuarantineEntry) -> tuple[int, int]:
    return entry.table_id, entry.stream_partition


def _result(entry: QuarantineEntry, state: QuarantineState, slice_number: int | None, why: str = "") -> Replayed:
    return Replayed(
        quarantine_id=entry.quarantine_id, table_id=entry.table_id, state=state, slice_number=slice_number, why=why
    )


def _decided(entry: QuarantineEntry) -> Replayed:
    return _result(entry, entry.state, entry.slice_number, entry.decision or "")


def _waits(entry: QuarantineEntry, why: str) -> Replayed:
    return _result(entry, QuarantineState.WAITING, None, why)


def _changed_types(known: Sequence[Column], schema: TableSchema) -> str:
    """Describes columns whose type differs from that of the lake, which never changes; "" if there are none."""
    return ", ".join(
        f"{column.name} is {column.type} now and {before.type} in the lake, which keeps its types"
        for before, column in changed_types(widest(known), schema.columns)
        if before.number == column.number and (column.number is not None or not _holds(before, column))
    )


def _holds(in_lake: Column, column: Column) -> bool:
    """Returns whether the lake's type holds every value of the column's type."""
    return wider(resolve(column.type).spark, resolve(in_lake.type).spark) is not None


def _kept(decoded: DecodedEvents, excluded: Sequence[str]) -> DecodedEvents:
    """Returns the events without the excluded columns, which a quarantined line of Debezium has."""
    if not excluded:
        return decoded
    rows, schema = without_columns(decoded.rows, decoded.schema, excluded)
    return replace(decoded, rows=rows, schema=schema)
