"""A fast lake: the real log and fence in a folder, rows deduplicated in memory by the kernel.

Every version is one file of a Delta log, written with put-if-absent by the code that the real lake uses, so what was
committed outlives a crash and two workers can race for a version. Only the merge is simpler: the claim's events go
through the kernel, and the table's one data file is written anew.
"""

import io
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_pipeline.areas import encode_component, lake_key
from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake import new_table, publication, rewind
from cdc_pipeline.lake.columns import check_partitions
from cdc_pipeline.lake.decay import EVERYTHING, Optimization
from cdc_pipeline.lake.delta_log import Action, Commit, DeltaLog
from cdc_pipeline.lake.differences import Comparison
from cdc_pipeline.lake.fence import (
    claim_metadata,
    commit_info,
    fence_action,
    find_claim,
    prove_applied,
    read_fence,
    write_again,
)
from cdc_pipeline.lake.ledger import keeps_deleted, read_ledger
from cdc_pipeline.lake.ledger_values import LakeLedger
from cdc_pipeline.lake.new_shape import has_another_shape, shape_key
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
from cdc_pipeline.lake.repeated_ids import repeated_of_few
from cdc_pipeline.lake.reshaping import Reshaping
from cdc_pipeline.lake.schema_change import Fitted, follow, latest_shape
from cdc_pipeline.lake.shape import shape_of_source
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import DELETED, TableName, TableSchema
from cdc_pipeline.settings.work import MaintenanceSettings
from cdc_pipeline.steps import OnStep, step
from tests.support.memory_comparison import Rows, compared, differing
from tests.support.memory_files import MemoryDeletedRows, put_rows
from tests.support.memory_rows import (
    Stored,
    checked_fence,
    checkpoint_when_due,
    events_of,
    keyed_claim,
    keyless_claim,
    lake_schema,
    outcome_of,
    purged,
    replaced_files,
    source_columns,
)
from tests.support.memory_shape import MemoryReshaper, described, reshaped, stored_schema


class MemoryLake:
    """Follows `cdc_pipeline.lake.protocol.Lake`; data partitions make no difference, and histories are not kept."""

    def __init__(self, *, store: ObjectStore, clock: Clock, on_step: OnStep) -> None:
        self._store, self._clock, self._on_step = store, clock, on_step

    def create_table(self, table: LakeTable, *, snapshot_id: str | None = None) -> None:
        check_partitions(table)
        log = self._log(table)
        new_table.refuse_without_beginning(log, self._store)
        with step(self._on_step, "lake_table.create"), suppress(LakeError):
            if snapshot_id is not None and has_another_shape(log, table):
                log = log.beside(shape_key(table, snapshot_id))
            log.append(0, described(shape_of_source(table.schema), table.table_uuid, vectors=table.deletion_vectors))

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
        """Nothing of it runs anywhere else."""
        return ""

    def close(self) -> None:
        """There is no session to end."""

    def cancel(self, session: str, claim_id: str) -> None:
        """There is nothing to cancel."""

    def upsert(self, table: LakeTable, work: ClaimWork, *, may_commit: Callable[[], None] = always) -> UpsertOutcome:
        started = time.monotonic()
        log = self._log(table)
        with step(self._on_step, "fence.read"):
            fence = checked_fence(read_fence(log, table.app_id), table, work)
        if fence.number < work.last_number:
            may_commit()
            if not work.slices:
                return self._move_fence(log, table, work, fence, started)
            merged = self._merge(log, table, work, fence, started)
            if merged is not None:
                checkpoint_when_due(self._store, log, merged.lake_version)
                return merged
        commit = find_claim(log, table.app_id, work, log.latest_version() or 0)
        prove_applied(commit, work)
        version = fence.lake_version if commit is None else commit.version
        return outcome_of({}, version=version, already=True, started=started)

    def compact(self, table: LakeTable, compaction: Compaction) -> tuple[DataFile, ...]:
        found = pa.concat_tables([pq.read_table(io.BytesIO(self._store.get(key))) for key in compaction.staged_keys])
        own = ([compaction.version] * len(found), [False] * len(found), pa.nulls(len(found), pa.string()))
        rows = pa.table([*found.columns, *map(pa.array, own)], schema=lake_schema(table))
        rows = rows.sort_by([(name, "ascending") for name in table.schema.key]) if table.schema.key else rows
        folder = f"snapshot-{encode_component(compaction.snapshot_id)}-{encode_component(compaction.attempt)}"
        size = max(1, -(-len(rows) // compaction.target_files))
        parts = [rows.slice(start, size) for start in range(0, len(rows), size)]
        return tuple(self._data_file(table, f"{folder}/{number:05d}", part) for number, part in enumerate(parts))

    def repeated_id(self, table: LakeTable, staged_keys: Sequence[str]) -> tuple[object, ...] | None:
        ids = TableSchema(columns=table.schema.key_columns, key=table.schema.key)
        return next(iter(repeated_of_few(self._store, ids, staged_keys) or ()), None)

    def publish(self, table: LakeTable, content: LakePublication, *, may_commit: Callable[[], None] = always) -> int:
        may_commit()
        deleted = MemoryDeletedRows(
            store=self._store,
            on_step=self._on_step,
            table=table,
            files=content.files,
            stored=lambda read: self._stored(self._log(table), table, read).rows,
        )
        return publication.publish(self._log(table), table, content, self._clock, self._on_step, deleted.write)

    def rewind(self, table: LakeTable, to_version: int, *, fence_then: int | None) -> Fence:
        return rewind.rewind(self._store, table, to_version, self._clock, self._on_step, fence_then=fence_then)

    def compare(self, table: LakeTable, source_key: str, lake_version: int, *, as_of: str | None = None) -> Comparison:
        assert as_of is None, "its tables keep no histories"
        source, lake = self._both(table, source_key, lake_version)
        return compared(table, source.to_pylist(), lake)

    def differing_rows(self, table: LakeTable, source_key: str, lake_version: int, *, most: int) -> pa.Table:
        source, lake = self._both(table, source_key, lake_version)
        return differing(table, source.to_pylist(), lake, source.schema, most)

    def keep_fence(self, table: LakeTable, *, older_than: timedelta) -> bool:
        with step(self._on_step, "fence.move"):
            return write_again(self._log(table), table.app_id, self._clock(), older_than)

    def optimize(
        self, table: LakeTable, need: MaintenanceSettings = EVERYTHING, *, claimed_at: int | None = None
    ) -> Optimization:
        """Its table is always one file, so there is a need only if everything is to be rewritten."""
        if need is not EVERYTHING or claimed_at is not None:
            return Optimization()
        log = self._log(table)
        stored = self._stored(log, table)
        with step(self._on_step, "lake_table.optimize"):
            self._replace(log, table, stored, stored.rows, data_change=False)
        return Optimization(files_before=1, files_after=1)

    def purge(self, table: LakeTable, below_version: str) -> None:
        log = self._log(table)
        stored = self._stored(log, table)
        before = stored.rows.to_pylist()
        after = before if keeps_deleted(log) else purged(table, before, below_version)
        if len(after) == len(before):
            return
        rows = pa.Table.from_pylist(after, schema=stored.rows.schema)
        with step(self._on_step, "lake_table.purge"):
            self._replace(log, table, stored, rows, data_change=True)

    def _replace(self, log: DeltaLog, table: LakeTable, stored: Stored, rows: pa.Table, *, data_change: bool) -> None:
        """A commit of maintenance: the same fence, another file."""
        file = self._data_file(table, f"maintained-{uuid.uuid4()}", rows)
        info = commit_info(operation="MAINTAIN", user_metadata="", read_version=stored.version, now=self._clock())
        log.append(stored.version + 1, [info, *replaced_files(table, stored, file, data_change=data_change)])

    def vacuum(self, table: LakeTable) -> None:
        """Nothing is ever old enough."""

    def rows(self, table: LakeTable) -> list[dict[str, Any]]:
        """Every row of the latest version, with every column, in no order."""
        return list(self._stored(self._log(table), table).rows.to_pylist())

    def commits(self, table: LakeTable) -> list[Commit]:
        """The whole log, oldest first."""
        log = self._log(table)
        return list(log.backwards(log.latest_version() or 0))[::-1]

    def _log(self, table: LakeTable) -> DeltaLog:
        return DeltaLog(self._store, lake_key(table.name))

    def _both(self, table: LakeTable, source_key: str, lake_version: int) -> tuple[pa.Table, Rows]:
        with step(self._on_step, "lake_table.compare"):
            rows: Rows = self._stored(self._log(table), table, lake_version).rows.to_pylist()
            return pq.read_table(io.BytesIO(self._store.get(source_key))), [row for row in rows if not row[DELETED]]

    def _stored(self, log: DeltaLog, table: LakeTable, version: int | None = None) -> Stored:
        """At `version`, or at the latest one."""
        latest = log.latest_version() if version is None else version
        if latest is None:
            raise LakeError(f"there is no lake table {table.name}", remedy="create it first")
        files = tuple(log.active_files(latest).values())
        keys = [f"{lake_key(table.name)}/{unquote(file['path'])}" for file in files]
        parts = [pq.read_table(io.BytesIO(self._store.get(key))) for key in keys]
        metadata = log.metadata(latest)
        rows = pa.concat_tables([stored_schema(metadata).empty_table(), *parts], promote_options="default")
        numbers = (commit.transaction_version(table.app_id) for commit in log.backwards(latest))
        transaction = next((number for number in numbers if number is not None), None)
        return Stored(version=latest, rows=rows, files=files, transaction=transaction)

    def _move_fence(
        self, log: DeltaLog, table: LakeTable, work: ClaimWork, fence: Fence, started: float
    ) -> UpsertOutcome:
        now, read = self._clock(), fence.lake_version
        info = commit_info(operation="CDC FENCE", user_metadata=claim_metadata(work), read_version=read, now=now)
        with step(self._on_step, "fence.move"):
            log.append(read + 1, [info, fence_action(table.app_id, work.last_number, now)])
        return outcome_of({}, version=fence.lake_version + 1, already=False, started=started)

    def _follow(self, log: DeltaLog, table: LakeTable, work: ClaimWork, fence: Fence) -> Fitted:
        """As the real lake, but for the rows, which are rewritten here."""

        def files(table: LakeTable, shaped: Reshaping, metadata: Action) -> list[Action]:
            stored = self._stored(log, table)
            if not stored.files:
                return []
            rows = reshaped(stored.rows, shaped.change, stored_schema(metadata))
            file = self._data_file(table, f"shape-{uuid.uuid4()}", rows)
            return replaced_files(table, stored, file, data_change=True)

        store, read, clock, on_step = self._store, fence.lake_version, self._clock, self._on_step
        with step(on_step, "lake_schema.read"):
            metadata = log.metadata(read)
        reshaper = MemoryReshaper(store=store, log=log, clock=clock, on_step=on_step, files=files)
        return follow(reshaper, table, work, read, metadata, always)

    def _merge(
        self, log: DeltaLog, table: LakeTable, work: ClaimWork, fence: Fence, started: float
    ) -> UpsertOutcome | None:
        """None: the log already has this transaction number. Raises LakeError when another commit came between."""
        fitted = self._follow(log, table, work, fence)
        table, stored = fitted.table, self._stored(log, fitted.table)
        if stored.transaction is not None and stored.transaction >= work.last_number:
            return None
        if not any(content.rows for content in work.slices):
            return self._move_fence(log, table, work, replace(fence, lake_version=stored.version), started)
        schema = stored.rows.schema
        columns, before = source_columns(schema, table), stored.rows.to_pylist()
        events = [event for event in events_of(self._store, work, fitted.shape) if event.version >= work.cutoff_version]
        if table.schema.is_keyless:
            known = {place for content in work.slices for place in fitted.shape.lake_names(content.schema).values()}
            given = tuple(name for name in columns if name in known.intersection(fitted.shape.shown))
            dropped = tuple(name for name in columns if name not in given)
            after, effects = keyless_claim(table, work, before, events, given, dropped)
        else:
            after, effects = keyed_claim(table, work, before, events, columns)
        now, read = self._clock(), stored.version
        info = commit_info(operation="MERGE", user_metadata=claim_metadata(work), read_version=read, now=now)
        actions = [info, fence_action(table.app_id, work.last_number, now)]
        if set(effects) - {"unchanged", "ignored", "tied"} or len(after) != len(before):
            file = self._data_file(table, f"claim-{uuid.uuid4()}", pa.Table.from_pylist(after, schema=schema))
            actions += replaced_files(table, stored, file, data_change=True)
        with step(self._on_step, "lake_table.merge"):
            log.append(stored.version + 1, actions)
        return outcome_of(effects, version=stored.version + 1, already=False, started=started, work=work)

    def _data_file(self, table: LakeTable, name: str, rows: pa.Table) -> DataFile:
        return put_rows(self._store, self._on_step, table, name, rows)
