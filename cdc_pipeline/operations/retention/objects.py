"""Finds objects that are no longer needed by listing the bucket. A listing is never held in memory as a whole."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from cdc_pipeline.areas import (
    CDC_EVENT,
    DB_SNAPSHOT,
    STAGING_AREA,
    WARM_UPS,
    chain_position_of_key,
    decode_component,
    quarantined_rows_key,
    stream_prefix,
    table_prefix,
)
from cdc_pipeline.consume.chain_base import ChainBase, order_of
from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.snapshots.records import Snapshot
from cdc_pipeline.metadata_store.states import FINISHED_SNAPSHOTS, SnapshotState
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.object_store.protocol import ObjectInfo
from cdc_pipeline.steps import OnStep, step
from cdc_pipeline.time_slice import SliceFileName

BATCH_OBJECTS = 1_000
_SNAPSHOT_STAMP = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectToDelete:
    """An object to delete. `since`: the time since when it is not needed, if its name or the store contains it."""

    key: str
    size_bytes: int
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OldObjects:
    """Finds objects of one stream and its tables that are no longer needed, and deletes them."""

    stream: str
    store: MetadataStore
    objects: ObjectStore
    on_step: OnStep

    def delete(self, keys: Sequence[str]) -> None:
        """Deletes one batch. An object that is gone already is no error."""
        with step(self.on_step, "old_objects.delete"):
            self.objects.delete_all(keys)

    def forgotten_cut_files(self, base: ChainBase) -> Iterator[ObjectToDelete]:
        """Yields cut files and bases before `base`."""
        for found in self._listed(stream_prefix(self.stream)):
            if order_of(chain_position_of_key(found.key)) < order_of(base.chain_position):
                yield ObjectToDelete(key=found.key, size_bytes=found.size_bytes)

    def files_without_a_slice(self, tables: Iterable[SourceTable], base: ChainBase) -> Iterator[ObjectToDelete]:
        """Yields slice files of ranges before the base that no slice names.

        Their writer died before it put the cut file, or another cut was decided. No cut before the base can be decided
        any more, so no slice will ever name these files.
        """
        ends = {part.stream_partition: part.next_offset for part in base.partitions}
        for row in tables:
            found = self._slice_files(row, base, ends)
            while batch := list(islice(found, BATCH_OBJECTS)):
                named = self.store.retention.named(row.table_id, [doomed.key for doomed in batch])
                yield from (doomed for doomed in batch if doomed.key not in named)

    def _slice_files(self, row: SourceTable, base: ChainBase, ends: Mapping[int, str]) -> Iterator[ObjectToDelete]:
        prefix = table_prefix(CDC_EVENT, row.name)
        for found in self._listed(prefix):
            folder, _, name = found.key.removeprefix(f"{prefix}/").rpartition("/")
            try:
                written, end = SliceFileName.parse(name), ends[int(folder.partition("/")[0])]
            except (ValueError, KeyError):
                continue
            is_late = written.start_offset == written.end_offset
            # the name of a late slice's file contains the position of its boundary
            if written.end_offset < base.position if is_late else written.end_offset <= end:
                yield ObjectToDelete(key=found.key, size_bytes=found.size_bytes, since=written.label.end)

    def old_snapshot_files(self, tables: Iterable[SourceTable], before: datetime) -> Iterator[ObjectToDelete]:
        """Yields files of snapshots that ended before `before`, and of unknown snapshots that began before it.

        The quarantined rows of the published snapshot stay: a rebuild needs them. So do those of an abandoned one: the
        lake shows it if its table became stale between the commit in the lake and the one in the store.
        """
        for row in tables:
            snapshots = {found.snapshot_id: found for found in self.store.snapshot_history.snapshots(row.table_id)}
            published = self.store.snapshot_history.published_snapshot(row.table_id)
            for area in (DB_SNAPSHOT, STAGING_AREA):
                prefix = table_prefix(area, row.name)
                for found in self._listed(prefix):
                    snapshot_id = decode_component(found.key.removeprefix(f"{prefix}/").partition("/")[0])
                    since = _ended_at(snapshot_id, snapshots.get(snapshot_id))
                    is_kept = found.key == quarantined_rows_key(row.name, snapshot_id) and (
                        snapshot_id not in snapshots
                        or snapshot_id == published
                        or snapshots[snapshot_id].state is SnapshotState.ABANDONED
                    )
                    if since is not None and since < before and not is_kept:
                        yield ObjectToDelete(key=found.key, size_bytes=found.size_bytes, since=since)

    def old_warm_ups(self, before: datetime) -> Iterator[ObjectToDelete]:
        """Yields what warm-ups left that were killed and began before `before`."""
        for found in self._listed(WARM_UPS):
            since = _ended_at(found.key.removeprefix(f"{WARM_UPS}/").partition("/")[0], None)
            if since is not None and since < before:
                yield ObjectToDelete(key=found.key, size_bytes=found.size_bytes, since=since)

    def unfinished_files(self, tables: Iterable[SourceTable], before: datetime) -> Iterator[ObjectToDelete]:
        """Yields files that killed puts left, and that nobody has written to since `before`.

        Those in the lake's tables are left to their maintenance.
        """
        areas = (CDC_EVENT, DB_SNAPSHOT, STAGING_AREA)
        of_tables = (table_prefix(area, row.name) for row in tables for area in areas)
        for prefix in (stream_prefix(self.stream), WARM_UPS, *of_tables):
            with step(self.on_step, "old_objects.list"):
                found = list(self.objects.unfinished(prefix, before))
            yield from (ObjectToDelete(key=each.key, size_bytes=each.size_bytes) for each in found)

    def _listed(self, prefix: str) -> Iterator[ObjectInfo]:
        with step(self.on_step, "old_objects.list"):
            yield from self.objects.list_prefix(prefix)


def _ended_at(snapshot_id: str, known: Snapshot | None) -> datetime | None:
    """Returns when the snapshot ended. None while it is being taken, and for a name that is no snapshot id.

    A snapshot that the store lacks counts as ended when it began; its id contains that time. So does a copy of the
    source that was put for a comparison, and a warm-up.
    """
    if known is not None:
        return known.finished_at if known.state in FINISHED_SNAPSHOTS else None
    try:
        return datetime.strptime(snapshot_id.partition("-")[0], _SNAPSHOT_STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None
