"""Publishes a snapshot by Spark: what the lake keeps of its old rows, the one commit, and then the table's history."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake import publication
from cdc_pipeline.lake.deleted_rows import DeletedRows
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.ledger_values import PublishedTable
from cdc_pipeline.lake.protocol import Clock, DataFile, LakePublication, LakeTable
from cdc_pipeline.lake.row_history import RowHistory
from cdc_pipeline.lake.table_state import LakeTableStates
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.steps import OnStep


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePublication:
    """The publication of one snapshot. `calls` wraps what Spark does; its text describes the call in an error."""

    session: Callable[[], SparkSession]
    calls: Callable[[str], AbstractContextManager[None]]
    store: ObjectStore
    states: LakeTableStates
    clock: Clock
    on_step: OnStep
    table: LakeTable
    content: LakePublication
    may_commit: Callable[[], None]

    def run(self) -> int:
        log = DeltaLog(self.store, lake_key(self.table.name))
        version = publication.publish(log, self.table, self.content, self.clock, self.on_step, self._deleted_rows)
        if self.table.keeps_history:
            self._adopt(version)
        return version

    def _deleted_rows(self, published: PublishedTable, read: int) -> tuple[DataFile, ...]:
        with self.calls(f"keeping deleted rows of {self.table.name} beside snapshot {self.content.snapshot_id}"):
            rows = DeletedRows(
                session=self.session(),
                store=self.store,
                on_step=self.on_step,
                table=self.table,
                files=self.content.files,
                published=published,
            )
            written = rows.write(read)
        self.may_commit()
        return written

    def _adopt(self, version: int) -> None:
        """Takes the published rows over into the table's history."""
        name = self.content.snapshot_id
        with self.calls(f"taking the snapshot {name} of {self.table.name} over into its history"):
            history = RowHistory(
                session=self.session(),
                store=self.store,
                states=self.states,
                clock=self.clock,
                on_step=self.on_step,
                table=self.table,
                may_commit=self.may_commit,
            )
            known, fence = self.content.table, self.content.fence_number
            at = self.clock() if known is None else known.cutoff_time
            cutoff = "" if known is None else known.cutoff_version
            history.adopt(version, fence, name, at=at, at_version=cutoff, cutoff=cutoff, has_all=False)
