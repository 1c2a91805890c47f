"""Retention: deletes slice files, cut files, snapshot files and rows that are older than `keep` in pipeline.yml.

It may be killed at any step; the next run continues:

1. A table forgets slices: under its lease, the store records up to which number slices are no longer needed. From then
   on, no rewind can go back to before that number.
2. Files of forgotten slices are deleted, and the store records that. Objects are deleted before rows: a row whose file
   is deleted is found again, but a file that no row names would be found only by a listing.
3. The base of the chain is put. Only then are older cut files and older bases deleted, so that a rebuild finds a whole
   chain at every moment.
4. Rows of forgotten cuts are deleted last, because the base is made from them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, islice
from typing import Any

import structlog

from cdc_pipeline.apply.table_work import TableWork
from cdc_pipeline.consume.chain_base import ChainBase, order_of
from cdc_pipeline.consume.cut_chain import CutChain
from cdc_pipeline.errors import CdcError, LeaseBusy
from cdc_pipeline.lake.protocol import Fence, LakeTable
from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.operations.old_rows import NOTHING_FORGOTTEN, OF_CUTS, OLD_ROWS
from cdc_pipeline.metadata_store.operations.retention import Cleaned, Keep
from cdc_pipeline.operations.retention.objects import BATCH_OBJECTS, ObjectToDelete, OldObjects
from cdc_pipeline.settings.work import KeepSettings

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """What was deleted. `held_by`: tables that still need old slices, and why; they keep the stream's cut files."""

    kinds: tuple[Cleaned, ...]
    held_by: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forgotten:
    """What tables forget, by table id.

    `through`: slices with this number or a lower one are forgotten. `fenced`: the numbers of the slices that the lake's
    fence names. `refused`: why a table forgets nothing. `unread`: tables whose fence cannot be read; the slices that it
    names are not known, so the rows of all cuts stay.
    """

    through: dict[int, int] = field(default_factory=dict)
    fenced: dict[int, tuple[int, ...]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    unread: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """Deletes what is older than `keep` says."""

    keep: KeepSettings
    work: TableWork
    chain: CutChain
    old_objects: OldObjects

    def clean(self, *, now: datetime | None = None, dry_run: bool = False) -> Cleaning:
        """Deletes everything that is older than `keep` allows at `now`, by default the time by the store's clock.

        A dry run changes nothing. A table that another process works on keeps its slices until the next run.
        """
        now = now or self.work.store.snapshot_history.now()
        tables = self.work.store.tables.tables()
        before = now - self.keep.slices
        forgotten = self._forget(tables, before, dry_run=dry_run)
        kinds = [self._slice_files(tables, forgotten, dry_run=dry_run)]
        parameters = dict(NOTHING_FORGOTTEN)
        boundary = None if forgotten.unread else self.work.store.retention.base(forgotten.through, before)
        if boundary is not None:
            kept = self.work.store.retention.keep(boundary, forgotten.fenced)
            base = self._base(kept, dry_run=dry_run)
            kinds += self._of_the_chain(tables, base, dry_run=dry_run)
            parameters = kept.parameters()
        began = now - self.keep.snapshots
        copies = chain(self.old_objects.old_snapshot_files(tables, began), self.old_objects.old_warm_ups(began))
        kinds.append(self._objects("snapshot files", copies, dry_run=dry_run))
        kinds.append(
            self._objects("unfinished files", self.old_objects.unfinished_files(tables, before), dry_run=dry_run)
        )
        parameters |= {"history_before": now - self.keep.history, "quarantine_before": now - self.keep.quarantine}
        names = [name for name in OLD_ROWS if boundary is not None or name not in OF_CUTS]
        kinds += [self._rows(name, parameters, dry_run=dry_run) for name in names]
        held_by = self._held_by(tables, forgotten, before)
        for found in kinds:
            log.info("cleaned", kind=found.kind, count=found.count, bytes=found.bytes, dry_run=dry_run)
        return Cleaning(kinds=tuple(kinds), held_by=held_by)

    def _forget(self, tables: Sequence[SourceTable], before: datetime, *, dry_run: bool) -> _Forgotten:
        forgotten = _Forgotten()
        for row in tables:
            try:
                with self.work.leased(row.table_id) as held:
                    through = self._forgettable(row, before, forgotten)
                    if through > row.forgotten_through and not dry_run:
                        self.work.store.retention.forget(held[0], through)
            except LeaseBusy as busy:
                through = row.forgotten_through
                forgotten.refused[row.table_id] = busy.found
                self._look_at_fence(row, forgotten)
            forgotten.through[row.table_id] = through
        return forgotten

    def _forgettable(self, row: SourceTable, before: datetime, forgotten: _Forgotten) -> int:
        """Returns the number at or below which slices can be forgotten, by the lake's own fence.

        A table with slices that are applied twice forgets nothing: a rewind will undo them.
        """
        fence = self._look_at_fence(row, forgotten)
        if row.table_id in forgotten.unread:
            return row.forgotten_through
        if fence is None or fence.repeated_at is not None:
            why = "it is not in the lake yet" if fence is None else "slices are applied twice"
            forgotten.refused[row.table_id] = why
            return row.forgotten_through
        return self.work.store.retention.forgettable(row.table_id, fence=fence.number, before=before)

    def _look_at_fence(self, row: SourceTable, forgotten: _Forgotten) -> Fence | None:
        """Reads the fence and records the slices that it names: their rows stay, since workers compare them with it.

        A later fence names only later slices. Returns None also for a fence that cannot be read.
        """
        if row.schema_id is None:
            return None
        schema = self.work.store.tables.schema(row.table_id, row.schema_id)
        try:
            fence = self.work.lake.read_fence(LakeTable(name=row.name, table_uuid=str(row.table_uuid), schema=schema))
        except (CdcError, OSError) as error:
            forgotten.unread.add(row.table_id)
            forgotten.refused[row.table_id] = f"its fence cannot be read from the lake: {error}"
            return None
        forgotten.fenced[row.table_id] = () if fence is None else tuple(identity.number for identity in fence.slices)
        return fence

    def _slice_files(self, tables: Sequence[SourceTable], forgotten: _Forgotten, *, dry_run: bool) -> Cleaned:
        """Deletes files of forgotten slices, table by table, also while another table still needs the cut files."""

        def files() -> Iterator[ObjectToDelete]:
            for row in tables:
                after, through = row.cleaned_through, forgotten.through[row.table_id]
                read = self.work.store.retention.old_files
                while batch := read(row.table_id, after=after, through=through, batch=BATCH_OBJECTS):
                    yield from (
                        ObjectToDelete(key=old.path, size_bytes=old.size_bytes, since=old.since) for old in batch
                    )
                    after = batch[-1].number

        cleaned = self._objects("slice files", files(), dry_run=dry_run)
        for row in tables:
            if forgotten.through[row.table_id] > row.cleaned_through and not dry_run:
                self.work.store.retention.mark_cleaned(row.table_id, forgotten.through[row.table_id])
        return cleaned

    def _base(self, kept: Keep, *, dry_run: bool) -> ChainBase:
        """Returns the bucket's base if it is as new as `kept`; otherwise puts a new one and returns it."""
        known = self.chain.base()
        if known is not None and order_of(known.chain_position) >= order_of(kept.base.chain_position):
            return known
        base = self.chain.base_behind(kept.base, self.work.store.base_rows.read(kept))
        if not dry_run:
            self.chain.put_base(base)
        return base

    def _of_the_chain(self, tables: Sequence[SourceTable], base: ChainBase, *, dry_run: bool) -> Iterator[Cleaned]:
        cut_files = self.old_objects.forgotten_cut_files(base)
        yield self._objects("cut files", cut_files, dry_run=dry_run)
        unnamed = self.old_objects.files_without_a_slice(tables, base)
        yield self._objects("files without a slice", unnamed, dry_run=dry_run)

    def _objects(self, kind: str, found: Iterator[ObjectToDelete], *, dry_run: bool) -> Cleaned:
        count, size_bytes, oldest = 0, 0, None
        while batch := list(islice(found, BATCH_OBJECTS)):
            if not dry_run:
                self.old_objects.delete([doomed.key for doomed in batch])
            count += len(batch)
            size_bytes += sum(doomed.size_bytes for doomed in batch)
            moments = (oldest, *(doomed.since for doomed in batch))
            oldest = min((moment for moment in moments if moment is not None), default=None)
        return Cleaned(kind=kind, count=count, bytes=size_bytes, oldest=oldest)

    def _rows(self, name: str, parameters: Mapping[str, Any], *, dry_run: bool) -> Cleaned:
        found = self.work.store.retention.count(name, parameters)
        while not dry_run and self.work.store.retention.delete(name, parameters):
            pass
        return found

    def _held_by(self, tables: Sequence[SourceTable], forgotten: _Forgotten, before: datetime) -> dict[str, str]:
        holding = self.work.store.retention.holding(forgotten.through, before)
        why = {row.table_id: "slices of it are not applied, or applied lately" for row in tables} | forgotten.refused
        names = {row.table_id: str(row.name) for row in tables}
        return {names[table_id]: why[table_id] for table_id in sorted({*holding, *forgotten.unread})}
