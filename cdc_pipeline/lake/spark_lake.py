"""The lake on Spark and Delta: one commit per claim and one per publication."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from uuid import UUID

import pyarrow as pa
import structlog
from pyspark.sql import DataFrame, SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import LakeAway, LakeError
from cdc_pipeline.lake import compaction, comparison, maintenance, rewind
from cdc_pipeline.lake.append_or_merge import Upsert
from cdc_pipeline.lake.columns import check_keyless, check_partitions, history_of
from cdc_pipeline.lake.decay import EVERYTHING, Optimization
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.differences import Comparison
from cdc_pipeline.lake.fence import read_fence, write_again
from cdc_pipeline.lake.few_rows import compact_few
from cdc_pipeline.lake.ledger import keeps_deleted, read_ledger
from cdc_pipeline.lake.ledger_values import LakeLedger
from cdc_pipeline.lake.new_shape import has_another_shape, shape_key
from cdc_pipeline.lake.new_table import create_plain_table, refuse_without_beginning
from cdc_pipeline.lake.optimization import TableOptimization
from cdc_pipeline.lake.passed_over import delete_unneeded
from cdc_pipeline.lake.protocol import (
    ClaimWork,
    Clock,
    Compaction,
    DataFile,
    Fence,
    LakePublication,
    LakeTable,
    UpsertOutcome,
    always,
)
from cdc_pipeline.lake.repeated_ids import repeated_of_few, repeated_of_many
from cdc_pipeline.lake.schema_change import latest_shape, shape_at
from cdc_pipeline.lake.session import (
    CancelSession,
    OpenSession,
    claim_tag,
    end_session,
    leave_lost,
    session_name,
)
from cdc_pipeline.lake.spark_errors import SessionLost, spark_calls
from cdc_pipeline.lake.table_ddl import create_sql
from cdc_pipeline.lake.table_publication import TablePublication
from cdc_pipeline.lake.table_state import LakeTableStates
from cdc_pipeline.lake.upsert import ClaimUpsert
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.settings.work import MaintenanceSettings
from cdc_pipeline.steps import OnStep, step

logger = structlog.get_logger()

LONGEST_IDLE = timedelta(minutes=30)
"""The Spark server ends a session that was idle for an hour. The next call in that session would fail."""


class SparkLake:
    """The lake on Spark and Delta, for one thread: a Spark session must not be used by two.

    `open_session` is called when Spark is first needed, and again after the session was lost or idle for long.
    """

    def __init__(
        self,
        *,
        open_session: OpenSession,
        store: ObjectStore,
        clock: Clock,
        on_step: OnStep,
        cancel_session: CancelSession | None = None,
        upsert: Upsert = "append",
        rows_without_spark: int = 0,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._used_at, self._calls_under_way, self._is_used = seconds, seconds(), 0, False
        self._way = upsert
        self._rows_without_spark = rows_without_spark
        self._states = LakeTableStates()
        self._cancel_session = cancel_session
        self._open_session = open_session
        self._opened: SparkSession | None = None
        self._store = store
        self._clock = clock
        self._on_step = on_step

    @property
    def session(self) -> SparkSession:
        self._end_idle_session()
        self._used_at, self._is_used = self._seconds(), True
        if self._opened is None or self._opened.client.is_closed:  # a clean-up that failed closes it
            self._opened = self._open_session()
        return self._opened

    def close(self) -> None:
        """Ends the Spark session, if one was opened."""
        if self._opened is not None:
            end_session(self._opened)
            self._opened = None

    def _end_idle_session(self) -> None:
        """Not during a call: what the session holds for the call, like its views, ends with the session."""
        if not self._calls_under_way and self._seconds() - self._used_at > LONGEST_IDLE.total_seconds():
            self.close()

    def create_table(self, table: LakeTable, *, snapshot_id: str | None = None) -> None:
        check_partitions(table)
        check_keyless(table)
        url, log = self._url(table), self._log(table)
        with step(self._on_step, "lake_table.create"), self._calls(f"creating {table.name}"):
            refuse_without_beginning(log, self._store)
            if snapshot_id is not None and has_another_shape(log, table):
                url = self._store.spark_url(shape_key(table, snapshot_id))
            elif create_plain_table(log, table, self._clock):
                return
            self.session.sql(create_sql(table, url)).collect()

    def read_fence(self, table: LakeTable) -> Fence | None:
        with step(self._on_step, "fence.read"):
            return read_fence(self._log(table), table.app_id)

    def read_ledger(
        self, table: TableName, *, table_uuid: UUID | None = None, after: int | None = None
    ) -> LakeLedger | None:
        with step(self._on_step, "ledger.read"):
            return read_ledger(DeltaLog(self._store, lake_key(table)), table_uuid, after=after)

    def read_version(self, table: LakeTable) -> int | None:
        with step(self._on_step, "lake_version.read"):
            return self._log(table).latest_version()

    def read_columns(self, table: LakeTable) -> tuple[str, ...]:
        with step(self._on_step, "lake_schema.read"):
            return latest_shape(self._log(table), table).shown

    def open(self) -> str:
        with spark_calls("opening a session"):
            return session_name(self.session)

    def cancel(self, session: str, claim_id: str) -> None:
        if self._cancel_session is None or (self._opened is not None and session == session_name(self._opened)):
            return
        try:
            with step(self._on_step, "lake_claim.cancel"), suppress(SessionLost):  # its owner has ended it
                self._cancel_session(session, claim_tag(claim_id))
        except LakeError as error:
            logger.warning("not cancelled", session=session, claim=claim_id, found=error.found)

    def upsert(self, table: LakeTable, work: ClaimWork, *, may_commit: Callable[[], None] = always) -> UpsertOutcome:
        claim = ClaimUpsert(
            session=lambda: self.session,
            calls=self._calls,
            store=self._store,
            states=self._states,
            way=self._way,
            clock=self._clock,
            on_step=self._on_step,
            table=table,
            work=work,
            may_commit=may_commit,
            rows_without_spark=self._rows_without_spark,
        )
        return claim.run()

    def compact(self, table: LakeTable, compaction_work: Compaction) -> tuple[DataFile, ...]:
        written = compact_few(self._store, table, compaction_work, self._on_step)
        if written is not None:
            return written
        with self._calls(f"compacting {table.name}"):
            return compaction.compact(self.session, self._store, table, compaction_work, self._on_step)

    def repeated_id(self, table: LakeTable, staged_keys: Sequence[str]) -> tuple[object, ...] | None:
        ids = TableSchema(columns=table.schema.key_columns, key=table.schema.key)
        with step(self._on_step, "staging_file.get"), self._calls(f"comparing the staged ids of {table.name}"):
            found = repeated_of_few(self._store, ids, staged_keys)
            if found is None:
                found = repeated_of_many(self.session, self._store, ids, staged_keys)
        return next(iter(found), None)

    def publish(self, table: LakeTable, content: LakePublication, *, may_commit: Callable[[], None] = always) -> int:
        snapshot = TablePublication(
            session=lambda: self.session,
            calls=self._calls,
            store=self._store,
            states=self._states,
            clock=self._clock,
            on_step=self._on_step,
            table=table,
            content=content,
            may_commit=may_commit,
        )
        return snapshot.run()

    def rewind(self, table: LakeTable, to_version: int, *, fence_then: int | None) -> Fence:
        return rewind.rewind(self._store, table, to_version, self._clock, self._on_step, fence_then=fence_then)

    def compare(self, table: LakeTable, source_key: str, lake_version: int, *, as_of: str | None = None) -> Comparison:
        with step(self._on_step, "lake_table.compare"), self._calls(f"comparing {table.name} with its source"):
            lake = self._visible(table, lake_version, as_of)
            return comparison.compare(self.session, table, self._store.spark_url(source_key), lake)

    def differing_rows(self, table: LakeTable, source_key: str, lake_version: int, *, most: int) -> pa.Table:
        with step(self._on_step, "lake_table.compare"), self._calls(f"comparing {table.name} with its source"):
            lake = self._visible(table, lake_version, None)
            return comparison.differing_rows(self.session, table, self._store.spark_url(source_key), lake, most=most)

    def _visible(self, table: LakeTable, lake_version: int, as_of: str | None) -> DataFrame:
        names = {name: name for name in table.schema.names}
        if table.is_history:
            names = shape_at(self._log(table), lake_version).lake_names(table.schema)
        return comparison.visible_rows(self.session, table, self._url(table), lake_version, names, as_of)

    def keep_fence(self, table: LakeTable, *, older_than: timedelta) -> bool:
        with step(self._on_step, "fence.move"):
            return write_again(self._log(table), table.app_id, self._clock(), older_than)

    def optimize(
        self, table: LakeTable, need: MaintenanceSettings = EVERYTHING, *, claimed_at: int | None = None
    ) -> Optimization:
        done = self._optimize(table, need, claimed_at)
        history = self._history_table(table)
        if history is not None:
            latest = None if claimed_at is None else self._log(history).latest_version()
            self._optimize(history, need, latest)
        return done

    def _optimize(self, table: LakeTable, need: MaintenanceSettings, claimed_at: int | None) -> Optimization:
        def by_delta() -> None:
            with step(self._on_step, "lake_table.optimize"), self._calls(f"optimizing {table.name}"):
                maintenance.optimize(self.session, self._url(table))

        optimization = TableOptimization(
            store=self._store,
            states=self._states,
            table=table,
            clock=self._clock,
            on_step=self._on_step,
            by_delta=by_delta,
        )
        return optimization.run(need, claimed_at=claimed_at)

    def purge(self, table: LakeTable, below_version: str) -> None:
        for each in filter(None, (table, self._history_table(table))):
            with step(self._on_step, "lake_table.purge"), self._calls(f"purging {each.name}"):
                if not keeps_deleted(self._log(each)):
                    maintenance.purge(self.session, each, self._url(each), below_version)

    def vacuum(self, table: LakeTable) -> None:
        for each in filter(None, (table, self._history_table(table))):
            with step(self._on_step, "lake_table.vacuum"), self._calls(f"vacuuming {each.name}"):
                vacuum = partial(maintenance.vacuum, self.session, self._url(each))
                delete_unneeded(self._store, self._log(each), self._states, self._clock(), vacuum)

    def _history_table(self, table: LakeTable) -> LakeTable | None:
        """Returns the table's history table. None if it keeps no history, or if the history has not begun."""
        history = history_of(table)
        return history if table.keeps_history and self._log(history).latest_version() is not None else None

    @contextmanager
    def _calls(self, doing: str) -> Iterator[None]:
        """Raises Spark's errors as LakeError. A call whose session is lost fails; the next call opens a new session."""
        self._end_idle_session()
        self._calls_under_way, self._is_used = self._calls_under_way + 1, False
        try:
            with spark_calls(doing):
                yield
        except LakeAway:
            lost, self._opened = self._opened, None
            if lost is not None:
                leave_lost(lost)
            raise
        finally:
            self._calls_under_way -= 1
            if self._is_used:  # some calls need no Spark
                self._used_at = self._seconds()

    def _log(self, table: LakeTable) -> DeltaLog:
        return DeltaLog(self._store, lake_key(table.name))

    def _url(self, table: LakeTable) -> str:
        return self._store.spark_url(lake_key(table.name))
