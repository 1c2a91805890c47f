"""What the lake needs no more, deleted: files, cut files and rows older than `keep` in pipeline.yml says.

It may be killed anywhere, and the next run goes on:

1. A table forgets: under its lease the store learns up to which slice nothing is needed any more. From then on no
   rewind goes back behind that.
2. Files of forgotten slices go, then the store learns that they are gone. Objects go before rows: a row that names a
   deleted file is found again, and nobody reads the file; a file that no row names would only be found by a listing.
3. The base of the chain is put. Only then do the cut files before it go, and older bases: whoever makes the store anew
   finds a whole chain at every moment.
4. Rows of forgotten cuts go last, because the base is made from them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

import structlog

from cdc_pipeline.consume.chain_base import ChainBase, order_of
from cdc_pipeline.errors import LeaseBusy
from cdc_pipeline.lake.protocol import Fence, LakeTable
from cdc_pipeline.metadata_store.lease_keeper import held_lease
from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.operations.old_rows import NOTHING_FORGOTTEN, OF_CUTS, OLD_ROWS
from cdc_pipeline.metadata_store.operations.retention import Keep
from cdc_pipeline.operations.retention.objects import (
    BATCH_OBJECTS,
    Doomed,
    delete,
    files_without_a_slice,
    forgotten_cut_files,
    old_snapshot_files,
)
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What was deleted of one kind, or would be. `oldest`: since when nobody needed the oldest, where that is known."""

    kind: str
    count: int
    bytes: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """`held_by`: tables whose old slices are still needed, and why; the stream's cut files stay with them."""

    kinds: tuple[Cleaned, ...]
    held_by: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forgotten:
    """By table: up to which number, which slices its lake's fence names, and why it forgets nothing, if it does not."""

    through: dict[int, int] = field(default_factory=dict)
    fenced: dict[int, tuple[int, ...]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


def clean(pipeline: Pipeline, *, now: datetime | None = None, dry_run: bool = False) -> Cleaning:
    """Everything that is older at `now`, by default the store's clock, than `keep` says. A dry run changes nothing.

    A table at which somebody works keeps its slices until the next run.
    """
    now = now or pipeline.store.snapshot_history.now()
    keep, tables = pipeline.settings.keep, pipeline.store.tables.tables()
    before = now - keep.slices
    forgotten = _forget(pipeline, tables, before, dry_run=dry_run)
    kinds = [_slice_files(pipeline, tables, forgotten, dry_run=dry_run)]
    parameters = dict(NOTHING_FORGOTTEN)
    boundary = pipeline.store.retention.base(forgotten.through, before)
    if boundary is not None:
        kept = pipeline.store.retention.keep(boundary, forgotten.fenced)
        base = _base(pipeline, kept, dry_run=dry_run)
        kinds += _of_the_chain(pipeline, tables, base, dry_run=dry_run)
        parameters = kept.parameters()
    snapshot_files = old_snapshot_files(pipeline, tables, now - keep.snapshots)
    kinds.append(_objects(pipeline, "snapshot files", snapshot_files, dry_run=dry_run))
    parameters |= {"history_before": now - keep.history, "quarantine_before": now - keep.quarantine}
    names = [name for name in OLD_ROWS if boundary is not None or name not in OF_CUTS]
    kinds += [_rows(pipeline, name, parameters, dry_run=dry_run) for name in names]
    held_by = _held_by(pipeline, tables, forgotten, before)
    for found in kinds:
        log.info("cleaned", kind=found.kind, count=found.count, bytes=found.bytes, dry_run=dry_run)
    return Cleaning(kinds=tuple(kinds), held_by=held_by)


def _forget(pipeline: Pipeline, tables: Sequence[SourceTable], before: datetime, *, dry_run: bool) -> _Forgotten:
    forgotten, lease_length = _Forgotten(), pipeline.settings.worker.lease
    for row in tables:
        try:
            with held_lease(pipeline.store.leases, row.table_id, owner=pipeline.owner, duration=lease_length) as held:
                through = _forgettable(pipeline, row, before, forgotten)
                if through > row.forgotten_through and not dry_run:
                    pipeline.store.retention.forget(held[0], through)
        except LeaseBusy as busy:
            through = row.forgotten_through
            _look_at_fence(pipeline, row, forgotten)
            forgotten.refused[row.table_id] = busy.found
        forgotten.through[row.table_id] = through
    return forgotten


def _forgettable(pipeline: Pipeline, row: SourceTable, before: datetime, forgotten: _Forgotten) -> int:
    """By the lake's own fence. A table that has slices there twice forgets nothing: they will be taken back."""
    fence = _look_at_fence(pipeline, row, forgotten)
    if fence is None or fence.repeated_at is not None:
        forgotten.refused[row.table_id] = "it is not in the lake yet" if fence is None else "slices are applied twice"
        return row.forgotten_through
    return pipeline.store.retention.forgettable(row.table_id, fence=fence.number, before=before)


def _look_at_fence(pipeline: Pipeline, row: SourceTable, forgotten: _Forgotten) -> Fence | None:
    """The rows of slices that it names stay: workers compare them. Whatever moves it later names none that is older."""
    if row.schema_id is None:
        return None
    schema = pipeline.store.tables.schema(row.table_id, row.schema_id)
    fence = pipeline.lake.read_fence(LakeTable(name=row.name, table_uuid=str(row.table_uuid), schema=schema))
    forgotten.fenced[row.table_id] = () if fence is None else tuple(identity.number for identity in fence.slices)
    return fence


def _slice_files(pipeline: Pipeline, tables: Sequence[SourceTable], forgotten: _Forgotten, *, dry_run: bool) -> Cleaned:
    """Table by table, also while another table keeps the cut files."""

    def files() -> Iterator[Doomed]:
        for row in tables:
            after, through = row.cleaned_through, forgotten.through[row.table_id]
            read = pipeline.store.retention.old_files
            while batch := read(row.table_id, after=after, through=through, batch=BATCH_OBJECTS):
                yield from (Doomed(key=old.path, size_bytes=old.size_bytes, since=old.since) for old in batch)
                after = batch[-1].number

    cleaned = _objects(pipeline, "slice files", files(), dry_run=dry_run)
    for row in tables:
        if forgotten.through[row.table_id] > row.cleaned_through and not dry_run:
            pipeline.store.retention.mark_cleaned(row.table_id, forgotten.through[row.table_id])
    return cleaned


def _base(pipeline: Pipeline, kept: Keep, *, dry_run: bool) -> ChainBase:
    """That of the bucket, where nothing more is forgotten since: what was put once is not put again."""
    chain = pipeline.cut_chain()
    known = chain.base()
    if known is not None and order_of(known.chain_position) >= order_of(kept.base.chain_position):
        return known
    base = chain.base_behind(kept.base, pipeline.store.base_rows.read(kept))
    if not dry_run:
        chain.put_base(base)
    return base


def _of_the_chain(
    pipeline: Pipeline, tables: Sequence[SourceTable], base: ChainBase, *, dry_run: bool
) -> Iterator[Cleaned]:
    cut_files = forgotten_cut_files(pipeline, base)
    yield _objects(pipeline, "cut files", cut_files, dry_run=dry_run)
    yield _objects(pipeline, "files without a slice", files_without_a_slice(pipeline, tables, base), dry_run=dry_run)


def _objects(pipeline: Pipeline, kind: str, found: Iterator[Doomed], *, dry_run: bool) -> Cleaned:
    count, size_bytes, oldest = 0, 0, None
    while batch := list(islice(found, BATCH_OBJECTS)):
        if not dry_run:
            delete(pipeline, [doomed.key for doomed in batch])
        count += len(batch)
        size_bytes += sum(doomed.size_bytes for doomed in batch)
        moments = (oldest, *(doomed.since for doomed in batch))
        oldest = min((moment for moment in moments if moment is not None), default=None)
    return Cleaned(kind=kind, count=count, bytes=size_bytes, oldest=oldest)


def _rows(pipeline: Pipeline, name: str, parameters: Mapping[str, Any], *, dry_run: bool) -> Cleaned:
    found = pipeline.store.retention.count(name, parameters)
    while not dry_run and pipeline.store.retention.delete(name, parameters):
        pass
    return Cleaned(kind=f"rows of {name}", count=found.rows, bytes=found.bytes, oldest=found.oldest)


def _held_by(
    pipeline: Pipeline, tables: Sequence[SourceTable], forgotten: _Forgotten, before: datetime
) -> dict[str, str]:
    holding = pipeline.store.retention.holding(forgotten.through, before)
    why = {row.table_id: "slices of it are not applied, or applied lately" for row in tables} | forgotten.refused
    names = {row.table_id: str(row.name) for row in tables}
    return {names[table_id]: why[table_id] for table_id in holding}
