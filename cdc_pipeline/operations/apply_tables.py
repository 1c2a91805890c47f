"""Applies slices to many tables, each on its own, and reports the runs that a scheduler starts.

A table that fails never stops the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from cdc_pipeline.apply.slice_to_lake import Applied
from cdc_pipeline.errors import CdcError, LakeError, LeaseBusy, ObjectStoreAway, TablePauses
from cdc_pipeline.lake.protocol import NOTHING_APPLIED, LakePublication
from cdc_pipeline.metadata_store.lease_keeper import held_lease
from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.models.states import SnapshotState, TableState
from cdc_pipeline.metadata_store.snapshots import snapshots as registry
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.record import TableName, encode_position
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()

_UNKNOWN = "no event has shown the table's columns yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult:
    """What became of one table; `exit_code` is 0, or that of the error that stopped it."""

    table: TableName
    applied: Applied | None
    error: CdcError | None

    @property
    def exit_code(self) -> int:
        return 0 if self.error is None else self.error.exit_code

    def row(self) -> dict[str, Any]:
        outcomes = self.applied.outcomes if self.applied else ()
        return {
            "table": str(self.table),
            "claims": len(outcomes),
            "inserted": sum(outcome.inserted for outcome in outcomes),
            "updated": sum(outcome.updated for outcome in outcomes),
            "deleted": sum(outcome.deleted for outcome in outcomes),
            "ignored": sum(outcome.ignored for outcome in outcomes),
            "ended": str(self.error) if self.error else self.applied.ended if self.applied else "",
        }


def apply_tables(
    pipeline: Pipeline, tables: Sequence[TableName], *, until: datetime | None = None, by_hand: bool = False
) -> tuple[TableResult, ...]:
    """One after the other, through the one Spark driver. A failing table is left to its pause, except by hand."""
    return tuple(_apply_table(pipeline, table, until, by_hand=by_hand) for table in tables)


def _apply_table(pipeline: Pipeline, table: TableName, until: datetime | None, *, by_hand: bool) -> TableResult:
    try:
        if not by_hand:
            _check_pause(pipeline.store, table)
        if not pipeline.source.capabilities.copies_tables and not _begin_empty(pipeline, table):
            return TableResult(table=table, applied=Applied(outcomes=(), ended=_UNKNOWN), error=None)
        applied = pipeline.slice_worker().slice_to_lake(table, until=until)
    except TablePauses as error:
        return TableResult(table=table, applied=None, error=error)
    except CdcError as error:
        log.warning("table not applied", table=str(table), found=str(error))
        return TableResult(table=table, applied=None, error=error)
    except OSError as error:
        away = ObjectStoreAway(f"a file cannot be read: {error}", remedy="the same call is safe to repeat")
        log.warning("table not applied", table=str(table), found=str(away))
        return TableResult(table=table, applied=None, error=away)
    except Exception as error:  # the one place where a fault of a table ends, whatever it is
        log.exception("table not applied", table=str(table))
        unforeseen = LakeError(
            f"{type(error).__name__}: {error}",
            expected="no error but those that are foreseen",
            remedy="the traceback is in the log; what was applied stays, and the same call is safe to repeat",
        )
        return TableResult(table=table, applied=None, error=unforeseen)
    return TableResult(table=table, applied=applied, error=None)


def _check_pause(store: MetadataStore, table: TableName) -> None:
    row = store.tables.table(table)
    failing = store.failures.failing(row.table_id)
    if failing is not None and failing.pauses:
        raise TablePauses(
            f"{table} {'is parked' if row.state is TableState.PARKED else 'pauses'}, its next try comes at"
            f" {failing.next_try_at:%Y-%m-%d %H:%M:%SZ}: {failing.failures} failures in a row since"
            f" {failing.failing_since:%Y-%m-%d %H:%M:%SZ}, the last one: {failing.error}",
            remedy=f"cdc apply {table} tries at once",
        )


def _begin_empty(pipeline: Pipeline, table: TableName) -> bool:
    """Makes the empty lake of a table that has no snapshot to begin with; False when its columns are not known yet.

    Safe to repeat from any step: the empty snapshot has one name for ever. Raises LeaseBusy while somebody else works.
    """
    row = pipeline.store.tables.table(table)
    if row.schema_id is None:
        return False
    if pipeline.store.snapshot_history.published_snapshot(row.table_id) is not None:
        return True
    snapshots = pipeline.store.snapshots
    lease_length = pipeline.settings.worker.lease
    with held_lease(pipeline.store.leases, row.table_id, owner=pipeline.owner, duration=lease_length) as held:
        new = _empty_snapshot(pipeline, row, row.schema_id)
        if snapshots.create_snapshot(new).state is not SnapshotState.PUBLISHED:
            snapshots.set_snapshot_state(new.snapshot_id, SnapshotState.PUBLISHING)
            lake_table = pipeline.lake_table(table)
            pipeline.lake.create_table(lake_table)
            held[1].check()
            version = pipeline.lake.publish(
                lake_table, LakePublication(snapshot_id=new.snapshot_id, files=(), fence_number=NOTHING_APPLIED)
            )
            published = registry.SnapshotPublication(
                fence_number=NOTHING_APPLIED, lake_version=version, rows=0, files=0, bytes=0
            )
            snapshots.publish_snapshot(held[0], new.snapshot_id, published)
    return True


def _empty_snapshot(pipeline: Pipeline, row: SourceTable, schema_id: str) -> registry.NewSnapshot:
    return registry.NewSnapshot(
        snapshot_id=f"empty-{row.table_uuid.hex}",
        table_id=row.table_id,
        cutoff_offset=encode_position(0),
        cutoff_version="",
        cutoff_time=pipeline.clock(),
        schema_id=schema_id,
    )


def run_slices(pipeline: Pipeline, table: TableName, *, by_hand: bool = False) -> dict[str, Any]:
    """Applies what waits. A busy lease is a success, its holder does the work; so is a table that is still unknown.

    So is one that pauses after a failure: the run that failed has said so, and a later one tries again. So is one that
    waits for the snapshot that it asked for by itself.
    """
    row = pipeline.store.tables.find(table)
    if row is None:
        return {"table": str(table), "ended": "the table is not registered yet: run cdc setup-source"}
    if row.snapshot_wanted:
        return {"table": str(table), "ended": f"a new snapshot of it follows: {row.parked_reason}"}
    (result,) = apply_tables(pipeline, [table], by_hand=by_hand)
    if result.error is not None and not isinstance(result.error, (LeaseBusy, TablePauses)):
        raise result.error
    log.info("slice run ended", **result.row())
    return result.row()


def run_backfill(
    pipeline: Pipeline, tables: Sequence[TableName], *, until: datetime | None = None
) -> list[dict[str, Any]]:
    """Applies what is registered and not applied, table by table, each as far as it can, a pausing one too.

    Raises afterwards what stopped a table, first of all what a later try can mend: LeaseBusy while another one works.
    """
    results = apply_tables(pipeline, tables, until=until, by_hand=True)
    errors = [result.error for result in results if result.error is not None]
    for error in sorted(errors, key=lambda found: not (found.retryable or isinstance(found, LeaseBusy))):
        raise error
    return [result.row() for result in results]
