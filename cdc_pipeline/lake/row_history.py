"""Keeps a table's history table: applies claims to it, and takes over what a snapshot shows.

Applying events a second time changes nothing, so a history table needs no fence of its own to be right: it is written
before the table itself, and a claim that ends between both is applied again to both. Its fence shows that the events
of a claim are all new and newer than what the history has; then only the periods that go on are looked at. With the
table's fence it shows whether the table was changed without the history; then the history first takes over its rows.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.adopted_rows import AdoptedRows
from cdc_pipeline.lake.append_or_merge import has_known_features
from cdc_pipeline.lake.claim_periods import ClaimPeriods, Places, oldest_commit_time, oldest_version
from cdc_pipeline.lake.claim_view import Views, opened_views
from cdc_pipeline.lake.columns import history_of
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.fence import claim_metadata, has_begun, history_lags, once, read_fence
from cdc_pipeline.lake.fitting import ids_before
from cdc_pipeline.lake.lake_files import AFTER_ALL, LakeFiles
from cdc_pipeline.lake.maintenance import checkpoint_when_due
from cdc_pipeline.lake.new_table import refuse_other_table, refuse_without_beginning
from cdc_pipeline.lake.periods_sql import same_ids
from cdc_pipeline.lake.protocol import ClaimWork, Clock, DataFile, Fence, LakeTable, SliceInput
from cdc_pipeline.lake.quoting import table_at, text_literal, value_literal
from cdc_pipeline.lake.reshaping import Reshaper
from cdc_pipeline.lake.rows_commit import rows_commit
from cdc_pipeline.lake.schema_change import Fitted, follow, planned_for_snapshot, shape_at
from cdc_pipeline.lake.session import configured
from cdc_pipeline.lake.shape import Shape, ShapeChange
from cdc_pipeline.lake.table_ddl import create_sql
from cdc_pipeline.lake.table_state import LakeTableStates
from cdc_pipeline.lake.write_claim import files_for, write_rows
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import BEFORE_ALL, CURRENT, END_VERSION, VALID_TO, VERSION, ClaimCounts
from cdc_pipeline.steps import OnStep, step


@dataclass(frozen=True, slots=True, kw_only=True)
class RowHistory:
    """Keeps the history of one `table`. For claims of at most `rows_without_spark` rows Arrow finds the periods.

    `may_commit` is called right before each commit and raises an error to forbid it.
    """

    session: SparkSession
    store: ObjectStore
    states: LakeTableStates
    clock: Clock
    on_step: OnStep
    table: LakeTable
    may_commit: Callable[[], None]
    rows_without_spark: int = 0

    def apply(self, work: ClaimWork, of_table: Fence) -> None:
        """Applies the claim in one commit, durable on return. `of_table`: the table's fence, right before the claim.

        A history that has not begun, or that lacks changes which the table has, takes over the rows of that version.
        Raises VersionTaken if another writer was first.
        """
        fence = self._fence()
        if fence is None or history_lags(fence, of_table):
            if not any(content.rows for content in work.slices):
                return  # the next claim with a change takes the rows over, and knows when it was made
            version, name = of_table.lake_version, of_table.snapshot_id or f"lake version {of_table.lake_version}"
            has_all = fence is None or fence.number <= of_table.number  # else the history has what comes again
            at, cutoff = self._began(work), work.cutoff_version
            begins_at = self._begins_at(work) if has_all else cutoff
            late = has_all and (work.tombstones or not self.table.ordered)
            self.adopt(
                version, of_table.number, name, at=at, at_version=begins_at, cutoff=cutoff, has_all=has_all, late=late
            )
            fence = self._begun()
        if fence.claim_id == work.claim_id and fence.number == work.last_number:
            return
        fitted = self._follow(work, fence.lake_version)
        is_new = self.table.ordered and not work.late and fence.number < work.first_number
        files = self._files(fitted, AFTER_ALL if is_new else oldest_version(self.store, work))
        with opened_views(self.session) as views:
            claim = self._claim(views, fitted, work, files, is_new=is_new)
            with step(self.on_step, "lake_claim.deduplicate"):
                truncates = claim.name_events()
            written, replaced = self._written(claim, truncates, None if truncates else max(1, files_for(work)))
            if written or replaced:
                metadata = claim_metadata(work, snapshot_id=of_table.snapshot_id)
                self._commit(files, max(fence.number, work.last_number), metadata, written, replaced)

    def _begins_at(self, work: ClaimWork) -> str:
        """Returns a version up to which rows were deleted that only the history has; "" if none is known."""
        known = max(work.cutoff_version, work.truncated_at)
        is_newest = self.table.ordered and not work.late
        return max(known, oldest_version(self.store, work)) if is_newest else known

    def _began(self, work: ClaimWork) -> datetime:
        """Returns the moment at which the history takes rows over: not later than the changes of the claim."""
        oldest = None if work.late else oldest_commit_time(self.store, work)
        return self.clock() if oldest is None else min(self.clock(), oldest)

    def _claim(
        self,
        views: Views,
        fitted: Fitted,
        work: ClaimWork,
        files: LakeFiles,
        *,
        is_new: bool = False,
        is_adoption: bool = False,
    ) -> ClaimPeriods:
        return ClaimPeriods(
            views=views,
            files=files,
            fitted=fitted,
            work=work,
            is_new=is_new,
            is_adoption=is_adoption,
            rows_without_spark=self.rows_without_spark,
        )

    def _written(
        self, claim: ClaimPeriods, truncates: Mapping[str, str], files: int | None
    ) -> tuple[tuple[DataFile, ...], Places]:
        """Returns the new files, and path -> indexes of the rows that they replace."""
        with step(self.on_step, "lake_claim.deduplicate"):
            changed = claim.changed(truncates)
        if changed is None:
            return (), {}
        periods, replaced = changed
        return self._write(claim.fitted, claim.files, periods, files), replaced

    def adopt(
        self,
        lake_version: int,
        fence_number: int,
        name: str,
        *,
        at: datetime,
        at_version: str,
        cutoff: str,
        has_all: bool,
        late: bool = False,
    ) -> None:
        """Takes over the rows of a version of the table, as changes at the moment `at`. Repeating it does nothing.

        `fence_number`: the last slice whose changes this version has. `name` says in the log where the rows came from.
        `at_version` and `has_all` say when missing rows were deleted; see `AdoptedRows.name_events`. If other
        columns are the id now, all periods end at `cutoff`, the version of the snapshot that brought the new id.
        `late`: events that are older than these rows may arrive later.
        """
        fence = self._opened(at, cutoff)
        rows = SliceInput(number=0, slice_id="", key="", rows=0, sha256="", schema=self.table.schema)
        work = ClaimWork(claim_id="", first_number=fence_number, last_number=fence_number, slices=(rows,))
        plan = partial(planned_for_snapshot, self.history, is_known=has_begun(fence))
        fitted = self._follow(work, fence.lake_version, plan)
        files = self._files(fitted, "")
        if not (has_all or has_begun(fence)) and cutoff in ("", BEFORE_ALL):
            self._refuse_periods(files)
        metadata = json.dumps({"snapshot_id": name})
        with opened_views(self.session) as views:
            adopted = AdoptedRows(views=views, store=self.store, table=self.table, fitted=fitted, at=at, late=late)
            begins = not len(files.state.files)
            with step(self.on_step, "lake_claim.deduplicate"):
                missing = adopted.name_rows(lake_version)
                count = adopted.name_events(missing, at_version, has_all=has_all, begins=begins)
            work = replace(work, slices=(replace(rows, rows=count),), tombstones=late)
            claim = self._claim(views, fitted, work, files, is_adoption=True)
            written, replaced = self._written(claim, {}, max(1, files_for(work))) if count else ((), {})
            if begins:
                written += self._write(fitted, files, adopted.first_periods(), None)
            self._commit(files, max(fence.number, fence_number), metadata, written, replaced)

    def _refuse_periods(self, files: LakeFiles) -> None:
        """Raises LakeError if there are periods: events of a table that was registered again may be in them already."""
        if files.state.files:
            raise LakeError(
                f"the lake has a history of {self.table.name} from before the table was removed",
                expected="no history: the stream may bring the changes in it a second time",
                remedy=f"move the folder {self._folder} away: a new history begins then",
            )

    def _opened(self, at: datetime, cutoff: str) -> Fence:
        """Creates the history if there is none. If other columns are the id now, ends all periods."""
        is_there = self._fence() is not None
        if not is_there:
            with step(self.on_step, "lake_table.create"):
                refuse_without_beginning(self.log, self.store)
                self.session.sql(create_sql(self.history, self.store.spark_url(self._folder))).collect()
        fence = self._begun()
        self._metadata(fence.lake_version)
        with step(self.on_step, "lake_schema.read"):
            shape = shape_at(self.log, fence.lake_version)
        ids = ids_before(shape, self.table.schema, self.table.source_id, is_known=has_begun(fence))
        if None in ids or (is_there and not self._are_ids(filter(None, ids))):
            self._end_all(at, cutoff, fence.lake_version)
            fence = self._begun()
        return fence

    def _are_ids(self, names: Iterable[str]) -> bool:
        """Returns whether no two rows of periods that go on are equal in these columns."""
        with step(self.on_step, "lake_files.read"):
            return not self.session.sql(same_ids(table_at(self.store.spark_url(self._folder)), names)).collect()

    def _end_all(self, at: datetime, version: str, read: int) -> None:
        """Ends all periods that go on, of a table whose rows have other ids now. Repeating it does nothing.

        `read`: the lake version with these periods. Delta skips the update if another process has ended them by then.
        """
        self.may_commit()
        with (
            step(self.on_step, "lake_history.commit"),
            configured(self.session, once(f"ids/{self.history.app_id}", read)),
        ):
            self.session.sql(
                f"UPDATE {table_at(self.store.spark_url(self._folder))} SET {CURRENT} = false,"
                f" {END_VERSION} = greatest({VERSION}, {text_literal(version)}),"
                f" {VALID_TO} = {value_literal(at, 'TIMESTAMP')} WHERE {CURRENT}"
            ).collect()

    @property
    def history(self) -> LakeTable:
        return history_of(self.table)

    @property
    def log(self) -> DeltaLog:
        return DeltaLog(self.store, self._folder)

    @property
    def _folder(self) -> str:
        return lake_key(self.history.name)

    def _commit(
        self, files: LakeFiles, fence_number: int, metadata: str, written: tuple[DataFile, ...], replaced: Places
    ) -> None:
        gone = sum(map(len, replaced.values()))
        counts = ClaimCounts(inserted=sum(file.rows for file in written) - gone, updated=gone)
        state, now = files.state, self.clock()
        actions = rows_commit(
            files,
            "CDC HISTORY",
            fence_number,
            metadata,
            counts,
            replaced,
            written,
            now=now,
            on_step=self.on_step,
        )
        self.may_commit()
        with step(self.on_step, "lake_history.commit"):
            self.log.append(state.version + 1, actions)
        state.follow(actions, state.version + 1)
        checkpoint_when_due(lambda: self.session, self.store, self.log, files.state, self.clock, self.on_step)

    def _write(self, fitted: Fitted, files: LakeFiles, sql: str, count: int | None) -> tuple[DataFile, ...]:
        folder = f"{files.folder}/history-{uuid.uuid4().hex}"
        with step(self.on_step, "lake_files.write"):
            return write_rows(self.session, self.store, fitted, files.state.metadata, sql, folder, files=count)

    def _fence(self) -> Fence | None:
        with step(self.on_step, "fence.read"):
            return read_fence(self.log, self.history.app_id)

    def _begun(self) -> Fence:
        fence = self._fence()
        if fence is None:
            raise LakeError(f"there is no lake table {self.history.name}", remedy="retry: the next claim creates it")
        return fence

    def _follow(self, work: ClaimWork, read: int, plan: Callable[[Shape], ShapeChange] | None = None) -> Fitted:
        metadata = self._metadata(read)
        reshaper = Reshaper(
            session=self.session, store=self.store, log=self.log, clock=self.clock, on_step=self.on_step
        )
        return follow(reshaper, self.history, work, read, metadata, self.may_commit, plan)

    def _metadata(self, read: int) -> Action:
        with step(self.on_step, "lake_schema.read"):
            metadata = self.states.at(self.log, read).metadata
        refuse_other_table(metadata, self.history.name, self.table.name)
        return metadata

    def _files(self, fitted: Fitted, ending_from: str) -> LakeFiles:
        with step(self.on_step, "lake_files.read"):
            state = self.states.at(self.log, fitted.version)
        if not has_known_features(state.metadata, state.protocol) or state.files.has_files_elsewhere:
            raise LakeError(
                f"the history table {self.history.name} has features or files that the pipeline does not maintain",
                expected="a Delta table as the pipeline created it",
                remedy="undo what was switched on for it, or move its folder away: a new history begins then",
            )
        return LakeFiles(
            store=self.store, table=fitted.table, state=state, columns=fitted.shape.types, ending_from=ending_from
        )
