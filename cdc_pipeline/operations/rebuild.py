"""Rebuilds the metadata store: cuts from cut files, claims and snapshots from the logs of the lake's tables."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import structlog

from cdc_pipeline.apply.next_move import check_ledger
from cdc_pipeline.areas import quarantined_rows_key
from cdc_pipeline.consume.chain_base import DecidedChain, Gap
from cdc_pipeline.consume.cut_chain import CutChain
from cdc_pipeline.consume.cut_file import CutFile, TableIdentity
from cdc_pipeline.errors import FenceMismatch, ObjectMissing, RegistryError
from cdc_pipeline.lake.ledger_values import LakeLedger, PublishedTable
from cdc_pipeline.lake.protocol import Lake
from cdc_pipeline.metadata_store.ledger.cut import BEGINNING
from cdc_pipeline.metadata_store.ledger.records import SourceTable, Stream
from cdc_pipeline.metadata_store.ledger.tables import NewTable
from cdc_pipeline.metadata_store.operations.rebuild import EmptyLedger
from cdc_pipeline.metadata_store.operations.rebuild_from_lake import KnownSnapshot
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.operations.known_steps import first_in_log, in_order, known_snapshot, known_steps, publications
from cdc_pipeline.operations.removed_tables import was_forgotten, was_removed
from cdc_pipeline.operations.source_setup.lake_owner import owner_of_lake_table
from cdc_pipeline.operations.unread_tables import unread_through
from cdc_pipeline.record import KnownClaim, TableName, encode_position
from cdc_pipeline.steps import OnStep, step

log = structlog.get_logger()

_LOGS_AT_ONCE = 16
_BEGINNING = encode_position(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A table after the rebuild. `fence`: None if the lake lacks the table. `notes`: what differs from before."""

    table: TableName
    slices: int
    next_number: int
    fence: int | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _FoundTable:
    """A table as bucket and lake describe it. `ledger`: None if the lake lacks the table.

    `unread_through`: position of the newest cut at which the table was stale and not read; "" if there is none.
    """

    identity: TableIdentity
    ledger: LakeLedger | None
    unread_through: str

    @property
    def stale(self) -> str | None:
        """Why the table is stale; None when it is not, or when a snapshot has all changes that were not read."""
        published, before = self.published, self.identity.cutoff_offset
        is_repaired = published is not None and before != published.cutoff_offset >= self.unread_through
        return None if is_repaired else self.identity.stale

    @property
    def published(self) -> PublishedTable | None:
        return None if self.ledger is None else self.ledger.published


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRebuild:
    """Rebuilds the metadata store of a stream. `tables`: those of pipeline.yml."""

    stream: str
    tables: tuple[TableName, ...]
    store: MetadataStore
    objects: ObjectStore
    lake: Lake
    chain: CutChain
    on_step: OnStep

    def run(self) -> tuple[Rebuilt, ...]:
        """Empties the ledger and fills it again from bucket and lake, in one transaction. Idempotent.

        The consumer may keep running: it loses the stream once and takes it again. Information that only the store has
        is kept: decisions about quarantined events, failed claims, tombstone horizons.

        Raises LeaseBusy while a process works on a table, FenceMismatch when lake and cut files contradict each other,
        RegistryError when the store has a cut that the bucket lacks.
        """
        base = self.chain.base()
        with self.store.rebuild.emptied(self.stream, since="" if base is None else base.position) as empty:
            store = MetadataStore(empty.database, empty.stream)
            chain = replace(self.chain, store=store)
            decided = DecidedChain.of(base, chain.files(BEGINNING if base is None else base.chain_position))
            if chain.base_position() != (None if base is None else base.chain_position):
                raise _cleaned_meanwhile("cut files were deleted before they were read")
            _refuse_to_forget(empty, decided)
            tables = self._found(decided)
            self._begin(empty, store, decided, tables)
            known = {found.identity.table_uuid for found in tables}
            rows = store.tables.tables()
            gaps, halts = decided.gaps(rows), decided.halts(rows)
            for chain_position, _ in decided.files:
                ours = _read_again(chain, chain_position).of_tables(known)
                if ours is None:
                    empty.pass_late_slice()
                else:
                    chain.adopt(ours, chain_position)
            empty.check_nothing_is_lost()
            rebuilt = tuple(_rebuild_table(empty, store, each, gaps, halts) for each in tables)
        for table in rebuilt:
            log.info("table rebuilt", table=str(table.table), slices=table.slices, fence=table.fence, notes=table.notes)
        return rebuilt

    def _found(self, chain: DecidedChain) -> tuple[_FoundTable, ...]:
        """Returns the tables of pipeline.yml, in its order, then other tables of the chain that were not removed.

        A table that was removed without its lake, and then listed again, is another one, which the lake lacks. One that
        was removed with its lake has no owner any more, or another one; or, listed again, one since a later cut. One
        that was removed before the base was made is left out, also if it is listed again. Raises FenceMismatch when
        lake and cut files have different tables under one name.
        """
        named = dict.fromkeys(identity.name for identity in chain.tables)
        owners = {name: owner_of_lake_table(name, objects=self.objects, on_step=self.on_step) for name in named}
        known = chain.newest_tables(
            {name: BEGINNING if owner is None else owner.since for name, owner in owners.items()}
        )
        ours = [name for name, owner in owners.items() if owner is not None and owner.pipeline == self.stream]
        names = dict.fromkeys((*self.tables, *ours))
        uuids = [known[name].table_uuid if name in known else None for name in names]
        with ThreadPoolExecutor(_LOGS_AT_ONCE) as threads:
            ledgers = list(threads.map(lambda name, uuid: self.lake.read_ledger(name, table_uuid=uuid), names, uuids))
        found, removed, unread = [], chain.removed, unread_through(chain)
        for name, in_lake in zip(names, ledgers, strict=True):
            identity, ledger = known.get(name), in_lake
            if in_lake is not None and (published := in_lake.published) is not None:
                if identity is None and was_forgotten(in_lake, chain):
                    continue
                own = TableIdentity(table_uuid=published.table_uuid, name=name, source_oid=published.source_oid)
                if identity is not None and identity.table_uuid != own.table_uuid:
                    if not was_removed(published, chain):
                        raise FenceMismatch(
                            f"{name} is {own.table_uuid} in the lake, {identity.table_uuid} in the cut files",
                            expected="one and the same table",
                            remedy="bucket and lake do not belong together: restore both from one moment",
                        )
                    ledger = None
                identity = identity or own
            if identity is not None and identity.table_uuid not in removed:
                through = unread.get(identity.table_uuid, "")
                found.append(_FoundTable(identity=identity, ledger=ledger, unread_through=through))
        return tuple(found)

    def _begin(
        self, empty: EmptyLedger, store: MetadataStore, decided: DecidedChain, tables: Sequence[_FoundTable]
    ) -> None:
        """Registers the stream and its tables, and restores the base of the chain."""
        streams = [*decided.streams]
        streams += [Stream(**found.published.stream) for found in tables if found.published is not None]
        if not streams:
            raise RegistryError(
                f"nothing describes the stream {self.stream}: no cut file, no published lake table",
                expected="the bucket that the pipeline has written to",
                remedy="correct lake and name in pipeline.yml; for a new pipeline, run cdc setup-source",
            )
        empty.begin_stream(streams[0], sorted(decided.stream_partitions))
        table_ids: dict[UUID, int] = {}
        for found in tables:
            published = found.published
            new = NewTable(
                name=found.identity.name,
                stream=empty.stream,
                source_oid=found.identity.source_oid,
                settings={} if published is None else published.settings,
                table_uuid=found.identity.table_uuid,
                published_as=found.identity.published_as or "",
            )
            table_id = empty.begin_table(new)
            table_ids[found.identity.table_uuid] = table_id
            if published is not None and published.description:
                store.tables.set_shapes(table_id, published.description)
            for table, step_of in publications(found.ledger):
                store.tables.record_schema(table_id, table.schema, first_offset=_BEGINNING)
                if table.kept:
                    rows = self._quarantined_rows(found, table)
                    empty.from_lake.restore_quarantined_rows(table_id, known_snapshot(table, step_of), rows)
        if decided.base is not None:
            empty.begin_behind(decided.base.read_through(), decided.base.rows, table_ids)

    def _quarantined_rows(self, found: _FoundTable, published: PublishedTable) -> list[dict[str, Any]]:
        """Returns the rows that a snapshot quarantined; none when they are deleted and the snapshot is not the last."""
        key = quarantined_rows_key(found.identity.name, published.snapshot_id)
        try:
            with step(self.on_step, "kept_rows.get"):
                rows: list[dict[str, Any]] = json.loads(self.objects.get(key))
        except ObjectMissing:
            if found.published is not None and found.published.snapshot_id == published.snapshot_id:
                raise
            return []
        return rows


def _read_again(chain: CutChain, chain_position: str) -> CutFile:
    found = chain.read(chain_position)
    if found is None:
        raise _cleaned_meanwhile(f"the cut file at {chain_position} was deleted during the rebuild")
    return found


def _cleaned_meanwhile(found: str) -> RegistryError:
    return RegistryError(
        found,
        expected="every cut file after the base of the chain",
        remedy="run cdc rebuild again when no cdc clean runs: nothing was changed",
    )


def _refuse_to_forget(empty: EmptyLedger, decided: DecidedChain) -> None:
    if not decided.files and empty.cuts_before:
        raise RegistryError(
            f"the bucket holds no cut file for the beginning of the stream {empty.stream}",
            expected=f"cut files for the {empty.cuts_before} cuts that the metadata store knows",
            remedy="bring the objects back, or restore a backup of the store: nothing was changed",
        )


def _why_stale(store: MetadataStore, gap: Gap | None, row: SourceTable, ledger: LakeLedger | None) -> str | None:
    """Returns why changes behind the fence of a table are missing; None if they are not, or if the lake lacks it."""
    if ledger is None or row.state is not TableState.LIVE:
        return None
    reason = None if gap is None else gap.behind(row.cutoff_offset)
    number = ledger.fence_number + 1
    is_kept = number > row.cleaned_through and store.slices.slices(row.table_id, number, number)
    if reason is None and number < row.next_slice_number and not is_kept:
        reason = f"its lake ends at slice {ledger.fence_number}, {number} is not kept; run cdc snapshot on it"
    return reason


def _rebuild_table(
    empty: EmptyLedger,
    store: MetadataStore,
    found: _FoundTable,
    gaps: Mapping[UUID, Gap],
    halts: Mapping[UUID, str | None],
) -> Rebuilt:
    name, uuid, ledger, from_lake = found.identity.name, found.identity.table_uuid, found.ledger, empty.from_lake
    row = store.tables.table(name)
    notes = list(empty.notes(row.table_id))
    steps = [] if ledger is None else list(known_steps(ledger))
    snapshots = [each.snapshot_id for each in steps if isinstance(each, KnownSnapshot)]
    if ledger is not None:
        _check_fence(store, found, ledger, row.table_id, row.next_slice_number)
    oldest = first_in_log(ledger)
    only_in_store = from_lake.claims_missing_in_log(
        row.table_id, last_number=oldest - 1, in_log=[each.claim_id for each in steps if isinstance(each, KnownClaim)]
    )
    for each in in_order(only_in_store, steps):
        if isinstance(each, KnownClaim):
            from_lake.apply(row.table_id, each)
        else:
            from_lake.publish(row.table_id, each)
    failed = from_lake.end_snapshots(row.table_id, snapshots, newest=snapshots[-1] if snapshots else None)
    if failed:
        notes.append(f"{failed} snapshots failed")
    stale = found.stale or _why_stale(store, gaps.get(uuid), store.tables.table(name), ledger)
    if stale is not None:
        from_lake.mark_stale(row.table_id, stale, halted_at=halts.get(uuid))
        notes.append(f"it is stale: {stale}")
    unproved = 0 if ledger is None else from_lake.apply_through(row.table_id, ledger.fence_number)
    if unproved:
        notes.append(f"{unproved} applied slices are proved by the fence's number alone: the lake's log was cleaned")
    return Rebuilt(
        table=name,
        slices=row.next_slice_number - 1,
        next_number=row.next_slice_number,
        fence=None if ledger is None else ledger.fence_number,
        notes=tuple(notes),
    )


def _check_fence(store: MetadataStore, found: _FoundTable, ledger: LakeLedger, table_id: int, next_number: int) -> None:
    if ledger.fence_number >= next_number:
        raise FenceMismatch(
            f"the lake of {found.identity.name} holds slices up to {ledger.fence_number}",
            expected=f"at most {next_number - 1}, the last one that a cut file names",
            remedy="bring the missing objects under cdc-event/ back: nothing was changed",
        )
    oldest = min((claim.first_number for claim in ledger.claims), default=next_number)
    slices = store.slices.slices(table_id, oldest, ledger.fence_number)
    named = {identity.number for claim in ledger.claims for identity in claim.slices}
    superseded = 0 if ledger.published is None else ledger.published.fence_number
    check_ledger(ledger, [row for row in slices if row.number in named or row.number > superseded])
