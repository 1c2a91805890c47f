"""Applies a claim in one commit: reads the fence, applies the claim by append or MERGE, verifies the commit."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import structlog
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import FenceMismatch, LakeAway, LakeError
from cdc_pipeline.lake.append_or_merge import Upsert, is_appended
from cdc_pipeline.lake.claim_append import ClaimAppend
from cdc_pipeline.lake.claim_merge import claim_confs, claim_merge, counted, fence_confs
from cdc_pipeline.lake.claim_view import opened_views
from cdc_pipeline.lake.columns import check_keyless, history_of
from cdc_pipeline.lake.delta_log import Commit, DeltaLog, VersionTaken
from cdc_pipeline.lake.fence import (
    claim_metadata,
    commit_info,
    fence_action,
    find_claim,
    history_lags,
    prove_applied,
    read_fence,
)
from cdc_pipeline.lake.lake_files import LakeFiles
from cdc_pipeline.lake.maintenance import EMPTY_COMMITS, checkpoint_when_due, commit_nothing
from cdc_pipeline.lake.protocol import ClaimWork, Clock, Fence, LakeTable, UpsertOutcome
from cdc_pipeline.lake.reshaping import Reshaper
from cdc_pipeline.lake.row_history import RowHistory
from cdc_pipeline.lake.schema_change import Fitted, follow
from cdc_pipeline.lake.session import claim_tag, configured, tagged
from cdc_pipeline.lake.table_features import unknown_features
from cdc_pipeline.lake.table_state import LakeTableState, LakeTableStates
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import ClaimCounts
from cdc_pipeline.steps import OnStep, step

logger = structlog.get_logger()
_MOST_RACES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """A claim that this worker applied. `counts` is None if only the metrics of the commit have them."""

    counts: ClaimCounts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimUpsert:
    """Applies one claim to one table. `calls` wraps calls of Spark; its argument describes them in errors.

    `may_commit` is called right before the commit and raises an error to forbid it. `rows_without_spark`: see
    `ClaimAppend`.
    """

    session: Callable[[], SparkSession]
    calls: Callable[[str], AbstractContextManager[None]]
    store: ObjectStore
    states: LakeTableStates
    way: Upsert
    clock: Clock
    on_step: OnStep
    table: LakeTable
    work: ClaimWork
    may_commit: Callable[[], None]
    rows_without_spark: int = 0

    def run(self) -> UpsertOutcome:
        """Applies the claim. If another commit takes the version, reads the fence again and retries.

        The other commit may have applied this very claim.
        """
        for _ in range(_MOST_RACES - 1):
            try:
                return self._run()
            except VersionTaken as error:
                logger.info("another commit was first", claim=self.work.claim_id, found=error.found)
        return self._run()

    def _run(self) -> UpsertOutcome:
        started = time.monotonic()
        fence = self._checked_fence()
        if fence.number < self.work.last_number:
            if not self.work.slices:
                self.may_commit()
                self._move_fence(fence)
            else:
                done = self._apply(fence)
                if done is not None:
                    with step(self.on_step, "fence.read"):
                        commit = self._find_claim(fence.lake_version)
                    return _applied(commit, self.table, self.work, done.counts, started)
        commit = self._find_claim(fence.lake_version)
        prove_applied(commit, self.work)
        version = fence.lake_version if commit is None else commit.version
        return UpsertOutcome(
            counts=ClaimCounts(),
            lake_version=version,
            already_applied=fence.number >= self.work.last_number or bool(self.work.slices),
            seconds=time.monotonic() - started,
        )

    @property
    def _log(self) -> DeltaLog:
        return DeltaLog(self.store, lake_key(self.table.name))

    def _checked_fence(self) -> Fence:
        work = self.work
        with step(self.on_step, "fence.read"):
            fence = read_fence(self._log, self.table.app_id)
        if fence is None:
            raise LakeError(f"there is no lake table {self.table.name}", remedy="take its snapshot first")
        if fence.number != work.first_number - 1 and fence.number < work.last_number:
            raise FenceMismatch(
                f"the lake of {self.table.name} is at slice {fence.number}",
                expected=f"{work.first_number - 1}, right before claim {work.claim_id}"
                f" of slices {work.first_number} to {work.last_number}",
                remedy="slices are applied in order and once: read the fence and claim from the slice after it",
            )
        return fence

    def _find_claim(self, known: int) -> Commit | None:
        latest = self._log.latest_version(known)
        return find_claim(self._log, self.table.app_id, self.work, known if latest is None else latest)

    def _move_fence(self, fence: Fence) -> None:
        """Moves the fence in a commit of its own. A claim without rows needs no Spark, as a rule."""
        table = replace(self.table, keeps_history=self.table.keeps_history and not self._history_lags(fence))
        with step(self.on_step, "fence.read"):
            state = self.states.at(self._log, fence.lake_version)
        if unknown_features(state.protocol):
            self._move_by_spark(table)
            return
        now, metadata = self.clock(), claim_metadata(self.work, in_history=table.keeps_history)
        info = commit_info(operation="CDC FENCE", user_metadata=metadata, read_version=fence.lake_version, now=now)
        actions = [info, fence_action(table.app_id, self.work.last_number, now)]
        with step(self.on_step, "fence.move"):
            self._log.append(fence.lake_version + 1, actions)
        state.follow(actions, fence.lake_version + 1)
        self._checkpoint_when_due(state)

    def _history_lags(self, fence: Fence) -> bool:
        """Returns whether the history lacks changes of the table. Then this commit must not say that it has them."""
        history = history_of(self.table)
        with step(self.on_step, "fence.read"):
            own = read_fence(DeltaLog(self.store, lake_key(history.name)), history.app_id)
        return own is None or history_lags(own, fence)

    def _move_by_spark(self, table: LakeTable) -> None:
        """Moves the fence of a table whose features only Delta's writer maintains. Does nothing if it is moved."""
        session, url = self.session(), self.store.spark_url(lake_key(table.name))
        confs = fence_confs(table, self.work) | EMPTY_COMMITS
        moving = self.calls(f"moving the fence of {table.name}")
        with moving, configured(session, confs), step(self.on_step, "fence.move"):
            commit_nothing(session, url)

    def _apply(self, fence: Fence) -> _Done | None:
        """Applies the claim. Returns None if another worker has applied it meanwhile.

        If Spark's answer is lost, the log shows whether the commit was made.
        """
        check_keyless(self.table)
        session = self.session()
        sent: list[_Done] = []
        try:
            with (
                self.calls(f"applying claim {self.work.claim_id} to {self.table.name}"),
                tagged(session, claim_tag(self.work.claim_id)),
            ):
                if self.table.keeps_history:
                    self._history(session).apply(self.work, fence)
                fitted = self._follow(session, fence.lake_version)
                files = None if self.way == "merge" else self._files(fitted)
                if files is None or not is_appended(self.work, files):
                    return self._merge(session, fitted, sent)
                return self._append(session, fitted, files)
        except LakeAway as error:
            if not sent or not self._has_landed():
                raise
            logger.warning("the answer was lost, the commit was not", claim=self.work.claim_id, found=error.found)
            return sent[0]

    def _history(self, session: SparkSession) -> RowHistory:
        return RowHistory(
            session=session,
            store=self.store,
            states=self.states,
            clock=self.clock,
            on_step=self.on_step,
            table=self.table,
            may_commit=self.may_commit,
            rows_without_spark=self.rows_without_spark,
        )

    def _follow(self, session: SparkSession, read: int) -> Fitted:
        with step(self.on_step, "lake_schema.read"):
            metadata = self._log.metadata(read) if self.way == "merge" else self.states.at(self._log, read).metadata
        reshaper = Reshaper(session=session, store=self.store, log=self._log, clock=self.clock, on_step=self.on_step)
        return follow(reshaper, self.table, self.work, read, metadata, self.may_commit)

    def _files(self, fitted: Fitted) -> LakeFiles:
        """Returns the table's files for an append."""
        with step(self.on_step, "lake_files.read"):
            state = self.states.at(self._log, fitted.version)
        return LakeFiles(store=self.store, table=fitted.table, state=state, columns=fitted.shape.types)

    def _append(self, session: SparkSession, fitted: Fitted, files: LakeFiles) -> _Done | None:
        claim = ClaimAppend(
            session=session,
            log=self._log,
            files=files,
            clock=self.clock,
            on_step=self.on_step,
            rows_without_spark=self.rows_without_spark,
        )
        counts, is_committed = claim.apply(fitted, self.work, self.may_commit)
        if not is_committed:
            self.may_commit()
            return self._fence_only(counts)
        self._checkpoint_when_due(files.state)
        return _Done(counts=counts)

    def _checkpoint_when_due(self, state: LakeTableState) -> None:
        checkpoint_when_due(self.session, self.store, self._log, state, self.clock, self.on_step)

    def _merge(self, session: SparkSession, fitted: Fitted, sent: list[_Done]) -> _Done | None:
        """Applies the claim by MERGE. `sent` gets what it does before it is sent: the answer may be lost.

        If the table's log already has the claim's number, Delta returns no row, and this returns None.
        """
        url = self.store.spark_url(lake_key(self.table.name))
        with opened_views(session) as views:
            with step(self.on_step, "lake_claim.deduplicate"):
                merge = claim_merge(views, self.store, fitted.table, self.work, url, fitted.shape)
            self.may_commit()
            if merge.sql is None:
                return self._fence_only(merge.counts)
            done = _Done(counts=merge.counts)
            sent.append(done)
            confs = claim_confs(self.table, self.work, merge)
            with configured(session, confs), step(self.on_step, "lake_table.merge"):
                return done if session.sql(merge.sql).collect() else None

    def _has_landed(self) -> bool:
        with step(self.on_step, "fence.read"):
            commit = self._find_claim(0)
        return commit is not None and commit.user_metadata.get("claim_id") == self.work.claim_id

    def _fence_only(self, counts: ClaimCounts | None) -> _Done | None:
        """Moves the fence for a claim that changes nothing. Returns None if another worker moved it meanwhile."""
        fence = self._checked_fence()
        if fence.number >= self.work.last_number:
            return None
        self._move_fence(fence)
        return _Done(counts=counts)


def _applied(
    commit: Commit | None, table: LakeTable, work: ClaimWork, counts: ClaimCounts | None, started: float
) -> UpsertOutcome:
    """Returns what the claim's commit did. Raises LakeError if `commit` is not the claim's."""
    if commit is None or commit.user_metadata.get("claim_id") != work.claim_id:
        raise LakeError(
            f"claim {work.claim_id} was applied, but no commit of {table.name} carries it",
            expected="a commit with the claim's id",
            remedy="retry: the fence shows whether the claim was applied",
        )
    return UpsertOutcome(
        counts=replace(counted(commit, counts), read=sum(content.rows for content in work.slices)),
        lake_version=commit.version,
        bytes_written=_bytes_added(commit),
        seconds=time.monotonic() - started,
    )


def _bytes_added(commit: Commit) -> int:
    """Counts new data files and deletion vectors. A file that only got a deletion vector was not written again."""
    vectors = [add["deletionVector"] for add in commit.of_kind("add") if add.get("deletionVector")]
    files = [add["size"] for add in commit.of_kind("add") if not add.get("deletionVector")]
    return sum(map(int, files)) + sum(int(vector["sizeInBytes"]) for vector in vectors)
