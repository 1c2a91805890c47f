"""Applies a claim without MERGE: one read and one write in parallel, then one commit that the pipeline writes itself.

The commit marks the rows that the claim deletes or replaces in deletion vectors, adds files with the claim's rows, and
moves the fence. It becomes exactly the version after the one that was read, or it fails.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from cdc_pipeline.lake.claim_rows import ClaimRows, claim_rows
from cdc_pipeline.lake.claim_view import Views, claim_shape, name_events, opened_views
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.fence import claim_metadata
from cdc_pipeline.lake.few_events import FewEvents
from cdc_pipeline.lake.lake_files import FILE, IS_DELETE, IS_NEWER, LakeFiles
from cdc_pipeline.lake.protocol import ClaimWork, Clock, DataFile
from cdc_pipeline.lake.rows_commit import rows_commit
from cdc_pipeline.lake.schema_change import Fitted
from cdc_pipeline.lake.session import claim_tag, tagged
from cdc_pipeline.lake.write_claim import files_for, write_rows
from cdc_pipeline.record import ClaimCounts
from cdc_pipeline.steps import OnStep, step


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """`deleted`: path -> indexes of the rows that the commit newly marks as deleted.

    `updated_rows`, `deleted_rows`: how many of these rows the claim replaces and deletes. `delete_events`: how many ids
    have a delete as their last event. `is_stale`: a row of the lake is not older than the claim's event.
    """

    deleted: Mapping[str, BitMap64]
    updated_rows: int = 0
    deleted_rows: int = 0
    delete_events: int = 0
    is_stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAppend:
    """Applies a claim to the table whose log is `log`. `files` are those of the version after which it is committed.

    For claims of at most `rows_without_spark` rows, Arrow finds the lake's rows if it can; else Spark.
    """

    session: SparkSession
    log: DeltaLog
    files: LakeFiles
    clock: Clock
    on_step: OnStep
    rows_without_spark: int = 0

    def apply(self, fitted: Fitted, work: ClaimWork, may_commit: Callable[[], None]) -> tuple[ClaimCounts, bool]:
        """Commits the claim; it is durable and visible on return.

        Returns what it did, and whether there was a commit: there is none if the claim changes nothing.
        Raises VersionTaken if another writer committed after the version of `files`.
        """
        if not any(content.rows for content in work.slices):
            return ClaimCounts(), False
        found, written = _Found(deleted={}), tuple[DataFile, ...]()
        with opened_views(self.session) as views:
            rows = self._rows(views, fitted, work, in_general=False)
            if rows.acts:
                found, written = self._find_and_write(fitted, work, rows)
            if found.is_stale:
                rows = self._rows(views, fitted, work, in_general=True)
                found, written = _Found(deleted={}), ()
                if rows.acts:
                    found, written = self._find_and_write(fitted, work, rows)
        counts = rows.counts or _counts(found, written)
        acts = bool(found.deleted or written)
        if acts:
            self._commit(work, found, written, counts, may_commit)
        return counts, acts

    def _commit(
        self,
        work: ClaimWork,
        found: _Found,
        written: tuple[DataFile, ...],
        counts: ClaimCounts,
        may_commit: Callable[[], None],
    ) -> None:
        state, now = self.files.state, self.clock()
        metadata = claim_metadata(work, in_history=self.files.table.keeps_history)
        actions = rows_commit(
            self.files,
            "CDC UPSERT",
            work.last_number,
            metadata,
            counts,
            found.deleted,
            written,
            now=now,
            on_step=self.on_step,
        )
        may_commit()
        with step(self.on_step, "lake_table.merge"):
            self.log.append(state.version + 1, actions)
        state.follow(actions, state.version + 1)

    def _rows(self, views: Views, fitted: Fitted, work: ClaimWork, *, in_general: bool) -> ClaimRows:
        shape = claim_shape(fitted.table, work, fitted.shape)
        with step(self.on_step, "lake_claim.deduplicate"):
            name_events(views, self.files.store, fitted.table, work, fitted.shape, shape)
            few_events = FewEvents(
                files=self.files, fitted=fitted, work=work, key=shape.key, most_rows=self.rows_without_spark
            )
            return claim_rows(
                views, self.files, shape, fitted.table, work, in_general=in_general, few_events=few_events
            )

    def _find_and_write(self, fitted: Fitted, work: ClaimWork, rows: ClaimRows) -> tuple[_Found, tuple[DataFile, ...]]:
        """Finds the rows to delete and writes the new ones in parallel.

        The new files are in the table only after the commit.
        """
        folder = f"{self.files.folder}/claim-{work.last_number}-{uuid.uuid4().hex}"

        def write() -> tuple[DataFile, ...]:
            with tagged(self.session, claim_tag(work.claim_id)):  # Spark keeps tags per thread
                metadata, files = self.files.state.metadata, files_for(work)
                return write_rows(self.session, self.files.store, fitted, metadata, rows.written, folder, files=files)

        with step(self.on_step, "lake_files.write"), ThreadPoolExecutor(1) as beside:
            writing = beside.submit(write)
            found = self.session.sql(rows.found).toArrow() if isinstance(rows.found, str) else rows.found
            if found is None:
                return _Found(deleted={}), writing.result()
            return _found(self.files, found, are_live=rows.counts is not None), writing.result()


def _found(files: LakeFiles, found: pa.Table, *, are_live: bool) -> _Found:
    """Sorts the rows found by what the claim does to them, without rows that a deletion vector already deletes.

    `are_live`: there are none of these.
    """
    deleted, places = dict[str, BitMap64](), defaultdict[str, list[tuple[bool, bool, BitMap64]]](list)
    updated_rows, deleted_rows, delete_events, is_stale = 0, 0, 0, False
    counted = pa.compute.equal(found.column(FILE), "")
    for total in found.filter(counted).column("rows").to_pylist():
        delete_events += total[0]
    found = found.filter(pa.compute.invert(counted))
    flags = zip(found.column(IS_DELETE).to_pylist(), found.column(IS_NEWER).to_pylist(), strict=True)
    for (is_delete, is_newer), (_, path, rows) in zip(flags, files.located(found), strict=True):
        places[path].append((is_delete, is_newer, rows))
    vectors = dict.fromkeys(places, BitMap64()).items() if are_live else files.vectors(places)
    for path, dead in vectors:
        for is_delete, is_newer, rows in places[path]:
            live = rows - dead
            if not is_newer:
                is_stale |= bool(live)
                continue
            deleted_rows += len(live) if is_delete else 0
            updated_rows += 0 if is_delete else len(live)
            if live:
                deleted[path] = deleted.get(path, BitMap64()) | live
    return _Found(
        deleted=deleted,
        updated_rows=updated_rows,
        deleted_rows=deleted_rows,
        delete_events=delete_events,
        is_stale=is_stale,
    )


def _counts(found: _Found, written: tuple[DataFile, ...]) -> ClaimCounts:
    rows = sum(file.rows for file in written)  # fewer than are replaced if an id was there twice
    return ClaimCounts(
        inserted=max(0, rows - found.updated_rows),
        updated=found.updated_rows,
        deleted=found.deleted_rows,
        ignored=max(0, found.delete_events - found.deleted_rows),
    )
