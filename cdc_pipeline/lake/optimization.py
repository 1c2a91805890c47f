"""Rewrites the files of a lake table that have decayed, in one commit of exactly the next version."""

import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import structlog

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.append_or_merge import has_known_features
from cdc_pipeline.lake.decay import Optimization, RewritePlan, looks_after, rewrite_plan
from cdc_pipeline.lake.deletion_vectors import vector_reference
from cdc_pipeline.lake.delta_log import Action, DeltaLog, VersionTaken
from cdc_pipeline.lake.fence import commit_info
from cdc_pipeline.lake.file_rewriting import FileRewriting, Rewritten
from cdc_pipeline.lake.protocol import Clock, LakeTable
from cdc_pipeline.lake.publication import add, remove
from cdc_pipeline.lake.table_state import LakeTableState, LakeTableStates
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.settings.work import MaintenanceSettings
from cdc_pipeline.steps import OnStep, step

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptimization:
    """Optimizes one table. `by_delta` runs Delta's own OPTIMIZE, which reads the whole table's state by Spark."""

    store: ObjectStore
    states: LakeTableStates
    table: LakeTable
    clock: Clock
    on_step: OnStep
    by_delta: Callable[[], None]

    def run(self, need: MaintenanceSettings, *, claimed_at: int | None) -> Optimization:
        """Rewrites what has decayed. The rows do not change, and the fence does not move.

        After a claim, whose version is `claimed_at`, it looks for such files only if enough versions came since this
        process last looked: looking takes longer the more files there are. If another writer commits first, nothing
        happens: the next run looks again. A table with features that the pipeline's own commits do not maintain is left
        to Delta, but not after a claim, because Delta's OPTIMIZE has no limit. Raises LakeError for a file that cannot
        be read or written; nothing is committed then.
        """
        log = DeltaLog(self.store, lake_key(self.table.name))
        with step(self.on_step, "lake_files.read"):
            version = log.latest_version(claimed_at)
            if version is None:
                return Optimization()
            state = self.states.at(log, version)
        if claimed_at is not None and version - state.looked_at < looks_after(need, len(state.files)):
            return Optimization()
        state.looked_at = version
        plan = rewrite_plan(state.files.worn(need.small_file_bytes, need.deleted_share), need)
        if not plan.groups:
            return Optimization()
        if not has_known_features(state.metadata, state.protocol) or state.files.has_files_elsewhere:
            if claimed_at is None:
                self.by_delta()
            return Optimization(by_delta=claimed_at is None)
        with step(self.on_step, "lake_files.write"):
            done = self._rewritten(state, plan, need.small_file_bytes)
        if not done.removed or not self._commit(log, state, done):
            return Optimization(left=plan.left)
        return Optimization(
            files_before=len(done.removed),
            files_after=len(done.added),
            bytes_read=sum(int(file["size"]) for file in done.removed),
            left=plan.left,
        )

    def _rewritten(self, state: LakeTableState, plan: RewritePlan, file_bytes: int) -> Rewritten:
        folder, done = f"{lake_key(self.table.name)}/optimized-{uuid.uuid4().hex}", Rewritten()
        groups = [
            [found for file in group if (found := state.files.get(file.path)) is not None] for group in plan.groups
        ]
        groups.sort(key=lambda files: [*map(vector_reference, files)])  # so that each vector file is read once
        objects = OrderedDict[str, bytes]()
        for number, files in enumerate(groups):
            rewriting = FileRewriting(
                store=self.store,
                table=self.table,
                metadata=state.metadata,
                folder=f"{folder}/{number}",
                file_bytes=file_bytes,
                vector_objects=objects,
            )
            try:
                part = rewriting.rewrite(files)
            except (pa.ArrowException, OSError) as error:
                raise LakeError(
                    f"files of {self.table.name} cannot be rewritten: {type(error).__name__}: {error!s:.300}",
                    expected=f"whole Parquet files below {self.store.url}, and a store that answers",
                    remedy="the table is unchanged, and the next run tries again; restore a file that is damaged",
                ) from error
            done.removed += part.removed
            done.added += part.added
        return done

    def _commit(self, log: DeltaLog, state: LakeTableState, done: Rewritten) -> bool:
        """Returns False if another commit was first."""
        now = self.clock()
        milliseconds = int(now.timestamp() * 1000)
        info = commit_info(operation="CDC OPTIMIZE", user_metadata="", read_version=state.version, now=now)
        actions = [
            info,
            *(_without_change("remove", remove(file, milliseconds)) for file in done.removed),
            *(_without_change("add", add(self.table, file, milliseconds)) for file in done.added),
        ]
        try:
            with step(self.on_step, "lake_table.optimize"):
                log.append(state.version + 1, actions)
        except VersionTaken as error:
            logger.info("another commit was first", lake=log.table_key, found=error.found)
            return False
        state.follow(actions, state.version + 1)
        state.looked_at = state.version
        return True


def _without_change(kind: str, action: Action) -> Action:
    """Returns the files as ones that bring no changes, for readers of the change data feed."""
    return {kind: action[kind] | {"dataChange": False}}
