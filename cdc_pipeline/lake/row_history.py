"""Keeps a table's history table: applies claims to it, and takes over what a snapshot shows.

Applying events a second time changes nothing, so a history table needs no fence of its own to be right: it is written
before the table itself, and a claim that ends between both is applied again to both. Its fence only tells that the
events of a claim are all new and newer than what the history has; then only the periods that go on are looked at.
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
from cdc_pipeline.lake.append_or_merge import has_known_features
from cdc_pipeline.lake.claim_changes import Counts
from cdc_pipeline.lake.claim_periods import ClaimPeriods, Places, oldest_version
from cdc_pipeline.lake.claim_view import NO_NAMES, Views, opened_views
from cdc_pipeline.lake.columns import HISTORY_TYPES, check_history, history_of
from cdc_pipeline.lake.deduplicate_sql import EVENT, LACKING, ClaimShape
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.fence import claim_metadata, read_fence
from cdc_pipeline.lake.fitting import ids_before
from cdc_pipeline.lake.lake_files import AFTER_ALL, LakeFiles
from cdc_pipeline.lake.lake_rows_sql import HIDDEN
from cdc_pipeline.lake.maintenance import checkpoint_when_due
from cdc_pipeline.lake.new_shape import physical_fields
from cdc_pipeline.lake.periods_sql import same_ids
from cdc_pipeline.lake.protocol import ClaimWork, Clock, DataFile, Fence, LakeTable, SliceInput
from cdc_pipeline.lake.quoting import identifier, table_at, text_literal, value_literal
from cdc_pipeline.lake.reshaping import Reshaper
from cdc_pipeline.lake.rows_commit import rows_commit
from cdc_pipeline.lake.schema_change import Fitted, follow_by_spark, planned_for_snapshot, shape_at
from cdc_pipeline.lake.shape import Shape, ShapeChange
from cdc_pipeline.lake.table_ddl import create_sql
from cdc_pipeline.lake.table_state import LakeTableStates
from cdc_pipeline.lake.write_claim import files_for, write_rows
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import (
    ABSENT,
    COMMIT_TIME,
    CURRENT,
    DELETED,
    END_VERSION,
    OPERATION,
    VALID_FROM,
    VALID_TO,
    VERSION,
)
from cdc_pipeline.steps import OnStep, step

_NOW = "cdc_row_now"


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

    def apply(self, work: ClaimWork, lake_version: int) -> None:
        """Applies the claim in one commit, durable on return. `lake_version`: the table right before the claim.

        A history that was not begun yet begins with the rows of that version. Raises VersionTaken if another writer
        was first.
        """
        check_history(self.table)
        fence = self._fence()
        if fence is None or (not fence.number and fence.snapshot_id is None):
            name = f"lake version {lake_version}"
            self.adopt(lake_version, work.first_number - 1, name, at=self.clock(), at_version="")
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
                self._commit(files, max(fence.number, work.last_number), claim_metadata(work), written, replaced)

    def _claim(self, views: Views, fitted: Fitted, work: ClaimWork, files: LakeFiles, *, is_new: bool) -> ClaimPeriods:
        return ClaimPeriods(
            views=views,
            files=files,
            fitted=fitted,
            work=work,
            is_new=is_new,
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
        return self._write(claim.fitted, claim.files, changed.sql, files), changed.replaced

    def adopt(self, lake_version: int, fence_number: int, name: str, *, at: datetime, at_version: str) -> None:
        """Takes over the rows of a version of the table, as changes at the moment `at`. Repeating it does nothing.

        `fence_number`: the last slice whose changes this version has. `name` says in the log where the rows came from.
        An id that the version lacks has been deleted, at `at_version` if the table has no newer row.
        """
        if self._fence() is None:
            with step(self.on_step, "lake_table.create"):
                self.session.sql(create_sql(self.history, self.store.spark_url(self._folder))).collect()
        fence = self._begun()
        with step(self.on_step, "lake_schema.read"):
            shape = shape_at(self.log, fence.lake_version)
        ids = ids_before(shape, self.table.schema, self.table.source_id)
        if None in ids or (fence.snapshot_id is not None and not self._are_ids(filter(None, ids))):
            self._end_all(at, at_version)
            fence = self._begun()
        rows = SliceInput(number=0, slice_id="", key="", rows=0, sha256="", schema=self.table.schema)
        work = ClaimWork(claim_id="", first_number=fence_number, last_number=fence_number, slices=(rows,))
        fitted = self._follow(work, fence.lake_version, partial(planned_for_snapshot, self.history))
        files = self._files(fitted, "")
        metadata = json.dumps({"snapshot_id": name})
        with opened_views(self.session) as views:
            with step(self.on_step, "lake_claim.deduplicate"):
                missing = self._name_rows_now(views, fitted, lake_version)
            if len(files.state.files):
                with step(self.on_step, "lake_claim.deduplicate"):
                    count = self._name_differences(views, fitted, missing, at, at_version)
                work = replace(work, slices=(replace(rows, rows=count),))
                claim = self._claim(views, fitted, work, files, is_new=False)
                written, replaced = self._written(claim, {}, max(1, files_for(work)))
            else:
                written, replaced = self._write(fitted, files, self._first_periods(fitted, at), None), {}
            self._commit(files, max(fence.number, fence_number), metadata, written, replaced)

    def _are_ids(self, names: Iterable[str]) -> bool:
        """Returns whether these columns tell apart the rows of all periods that go on."""
        with step(self.on_step, "lake_files.read"):
            return not self.session.sql(same_ids(table_at(self.store.spark_url(self._folder)), names)).collect()

    def _end_all(self, at: datetime, at_version: str) -> None:
        """Ends all periods that go on, of a table whose rows have other ids now. Repeating it does nothing."""
        self.may_commit()
        with step(self.on_step, "lake_history.commit"):
            self.session.sql(
                f"UPDATE {table_at(self.store.spark_url(self._folder))} SET {CURRENT} = false,"
                f" {END_VERSION} = greatest({VERSION}, {text_literal(at_version)}),"
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
        counts = Counts(inserted=sum(file.rows for file in written) - gone, updated=gone)
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
        checkpoint_when_due(self.session, self.store, self.log, files.state, self.clock, self.on_step)

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
        with step(self.on_step, "lake_schema.read"):
            metadata = self.states.at(self.log, read).metadata
        if END_VERSION not in physical_fields(metadata):
            raise LakeError(
                f"the lake has a table {self.history.name}, which is no history table of {self.table.name}",
                expected="no other table of this name",
                remedy="leave history out of pipeline.yml for the one table, or remove the other",
            )
        reshaper = Reshaper(
            session=self.session, store=self.store, log=self.log, clock=self.clock, on_step=self.on_step
        )
        return follow_by_spark(reshaper, self.history, work, read, metadata, self.may_commit, plan)

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

    def _name_rows_now(self, views: Views, fitted: Fitted, lake_version: int) -> list[str]:
        """Makes the view of the table's visible rows, with the history's columns.

        Returns the columns that the table does not have; they are NULL.
        """
        names = fitted.shape.lake_names(self.table.schema)
        table_log = DeltaLog(self.store, lake_key(self.table.name))
        theirs = shape_at(table_log, lake_version).lake_names(self.table.schema)
        sources = {names[name]: theirs[name] for name in names if name in theirs}
        values = [
            f"CAST({identifier(sources[column.name]) if column.name in sources else 'NULL'} AS {column.type})"
            f" AS {identifier(column.name)}"
            for column in fitted.shape.columns
        ]
        url = self.store.spark_url(lake_key(self.table.name))
        rows = self.session.read.format("delta").option("versionAsOf", lake_version).load(url)
        views.name(_NOW, rows.where(f"NOT {HIDDEN}").selectExpr(*values, VERSION))
        return [name for name in fitted.shape.names if name not in sources]

    def _first_periods(self, fitted: Fitted, at: datetime) -> str:
        given = {DELETED: "false", VALID_FROM: value_literal(at, "TIMESTAMP"), CURRENT: "true", VERSION: VERSION}
        own = (f"{given.get(name, f'CAST(NULL AS {type_})')} AS {name}" for name, type_ in HISTORY_TYPES)
        return f"SELECT {', '.join([*map(identifier, fitted.shape.names), *own])} FROM {_NOW}"

    def _name_differences(self, views: Views, fitted: Fitted, missing: list[str], at: datetime, at_version: str) -> int:
        """Makes the view EVENT of what the table's rows have and the periods that go on have not; returns its length.

        A period that began after the table's version says more than that version, and stays.
        """
        shape = ClaimShape(columns=fitted.shape.types, key=fitted.table.schema.key)
        compared = [name for name in shape.others if name not in missing]
        same = " AND ".join(["true", *(f"row.{identifier(name)} <=> was.{identifier(name)}" for name in compared)])
        names = ", ".join(map(text_literal, missing))
        own = f"{value_literal(at, 'TIMESTAMP')} AS {COMMIT_TIME}, {NO_NAMES} AS {ABSENT}"
        columns = ", ".join(f"row.{identifier(name)}" for name in shape.names)
        nothing = ", ".join(
            f"was.{identifier(name)}" if name in shape.key else f"CAST(NULL AS {type_}) AS {identifier(name)}"
            for name, type_ in shape.columns
        )
        periods_now = f"""(SELECT * FROM {table_at(self.store.spark_url(self._folder))}
                           WHERE {CURRENT} AND NOT {HIDDEN})"""
        newest = f"(SELECT greatest(max({VERSION}), {text_literal(at_version)}) AS {VERSION} FROM {_NOW})"
        events = views.keep_sql(
            EVENT,
            f"""
            SELECT 'u' AS {OPERATION}, row.{VERSION}, {own},
                   CAST(array({names}) AS ARRAY<STRING>) AS {LACKING}, {columns}
            FROM {_NOW} AS row LEFT JOIN {periods_now} AS was ON {shape.same("row", "was")}
            WHERE was.{VERSION} IS NULL OR (was.{VERSION} <= row.{VERSION} AND NOT ({same}))
            UNION ALL
            SELECT 'd', newest.{VERSION}, {own}, {NO_NAMES}, {nothing}
            FROM {periods_now} AS was LEFT ANTI JOIN {_NOW} AS row ON {shape.same("row", "was")}
            CROSS JOIN {newest} AS newest WHERE was.{VERSION} < newest.{VERSION}""",
        )
        return events.count()
