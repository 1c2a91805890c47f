"""Publishes a snapshot of a table: one commit of the lake, and then its record in the metadata store."""

from collections.abc import Sequence
from dataclasses import asdict

from cdc_pipeline.apply.table_work import TableWork
from cdc_pipeline.lake.ledger_values import PublishedTable
from cdc_pipeline.lake.protocol import DataFile, LakePublication, LakeTable
from cdc_pipeline.metadata_store.lease_keeper import LeaseKeeper
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.metadata_store.snapshots.records import Snapshot
from cdc_pipeline.metadata_store.snapshots.snapshots import SnapshotPublication


def publish(
    work: TableWork,
    held: tuple[Lease, LeaseKeeper],
    table: LakeTable,
    snapshot: Snapshot,
    *,
    fence: int,
    files: Sequence[DataFile] = (),
    quarantined: int = 0,
    replaces: int | None = None,
    begins: bool = False,
) -> Snapshot:
    """Replaces the table's content by one commit with the fence, and then records the publication.

    Both are durable on return. The commit also records what `cdc rebuild` reads if only the lake is left. `table` has
    the columns of the snapshot. `quarantined`: so many of its rows. `replaces` and `begins`: as in `LakePublication`.
    """
    lease, keeper = held
    keeper.check()
    description = _description(work, table, snapshot, fence, files, quarantined)
    content = LakePublication(
        snapshot_id=snapshot.snapshot_id,
        files=tuple(files),
        fence_number=fence,
        table=description,
        replaces=replaces,
        begins=begins,
        started_at=snapshot.started_at,
    )
    version = work.lake.publish(table, content, may_commit=keeper.check)
    figures = SnapshotPublication(
        fence_number=fence,
        lake_version=version,
        rows=description.rows,
        files=description.files,
        bytes=description.bytes,
    )
    return work.store.snapshots.publish_snapshot(lease, snapshot.snapshot_id, figures)


def _description(
    work: TableWork, table: LakeTable, snapshot: Snapshot, fence: int, files: Sequence[DataFile], quarantined: int
) -> PublishedTable:
    row = work.store.tables.table_by_id(snapshot.table_id)
    return PublishedTable(
        table_uuid=row.table_uuid,
        source_oid=row.source_oid,
        stream=asdict(work.store.streams.stream(row.stream)),
        settings=row.settings,
        schema=table.schema,
        snapshot_id=snapshot.snapshot_id,
        fence_number=fence,
        cutoff_offset=snapshot.cutoff_offset,
        cutoff_version=snapshot.cutoff_version,
        cutoff_time=snapshot.cutoff_time,
        rows=sum(file.rows for file in files),
        files=len(files),
        bytes=sum(file.size_bytes for file in files),
        kept=quarantined,
        description=tuple(row.shape or ()),
    )
