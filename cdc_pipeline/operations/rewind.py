"""Sets a table of the lake back to an earlier position; its later slices are applied again."""

from dataclasses import dataclass
from datetime import datetime

import structlog

from cdc_pipeline.errors import FenceMismatch, ObjectMissing, SliceDamaged, SnapshotError, UsageError
from cdc_pipeline.metadata_store.lease_keeper import held_lease
from cdc_pipeline.metadata_store.operations.rewinds import RewindTarget
from cdc_pipeline.record import TableName, encode_position
from cdc_pipeline.steps import step
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()

EVERYTHING_REGISTERED = 0
_POSITION_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """The lake's table equals the source as of `position` again. `slices_waiting`: how many slices wait behind it."""

    table: TableName
    position: str
    as_of: datetime
    slices_waiting: int


def rewind(pipeline: Pipeline, table: TableName, to: str) -> Rewound:
    """Sets the table back to the end of the last claim at or before `to`, a position or a time.

    Raises LeaseBusy while somebody works on the table, UsageError for a position before its snapshot, LakeError when
    files of that lake version may be deleted, SliceDamaged when a slice file that is needed again is gone.
    """
    row, lease_length = pipeline.store.tables.table(table), pipeline.settings.worker.lease
    position, moment = parse_target(to)
    with held_lease(pipeline.store.leases, row.table_id, owner=pipeline.owner, duration=lease_length) as held:
        if pipeline.store.snapshots.active_snapshot(row.table_id) is not None:
            raise SnapshotError(f"a snapshot of {table} is being taken", remedy="rewind when it has ended")
        worker = pipeline.slice_worker()
        worker.apply_held(*held, table, before=EVERYTHING_REGISTERED)
        target = pipeline.store.rewinds.target(row.table_id, position=position, moment=moment)
        if target is None:
            raise UsageError(
                f"nothing of {table} was applied at or before {to}",
                expected="a position behind the cutoff of its last snapshot, whose slices are kept (keep.slices)",
                remedy="look at cdc sql claims, or take a new snapshot",
            )
        _check_slice_files(pipeline, row.table_id, target.number + 1, row.next_slice_number - 1)
        held[1].check()
        fence = pipeline.lake.rewind(pipeline.lake_table(table), target.lake_version)
        if fence.number != target.number:
            raise FenceMismatch(
                f"version {target.lake_version} of {table} held slices to {fence.number}",
                expected=f"{target.number}, as the registry says",
                remedy="run cdc rebuild: the metadata store does not belong to this lake",
            )
        pipeline.store.rewinds.reopen(held[0], after=target.number)
    return _rewound(table, target, row.next_slice_number)


def parse_target(text: str) -> tuple[str | None, datetime | None]:
    """Reads a position (`0/8D3FAF8`, or 16 hexadecimal digits), or a time in ISO 8601 with its zone."""
    high, slash, low = text.partition("/")
    try:
        if slash:
            return encode_position((int(high, 16) << 32) + int(low, 16)), None
        if len(text) == _POSITION_DIGITS:
            return encode_position(int(text, 16)), None
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise _no_target(text) from error
    if moment.tzinfo is None:
        raise _no_target(text)
    return None, moment


def _no_target(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is no position or time to go back to",
        expected="a position such as 0/8D3FAF8, or a moment such as 2026-01-31T12:00:00Z",
        remedy="take one that cdc status or cdc sql boundaries shows",
    )


def _check_slice_files(pipeline: Pipeline, table_id: int, first: int, last: int) -> None:
    """Checks that the files of all slices that will be applied again are still there."""
    for row in pipeline.store.slices.slices(table_id, first, last):
        if row.path is None:
            continue
        try:
            with step(pipeline.on_step, "slice_file.head"):
                pipeline.objects.head(row.path)
        except ObjectMissing as error:
            raise SliceDamaged(
                f"the slice file {row.path} is gone, and would be needed again",
                expected="every slice file behind the position to go back to",
                remedy="choose a later position, or take a new snapshot",
            ) from error


def _rewound(table: TableName, target: RewindTarget, next_number: int) -> Rewound:
    waiting = next_number - 1 - target.number
    log.info("table rewound", table=str(table), position=target.position, slices_waiting=waiting)
    return Rewound(table=table, position=target.position, as_of=target.time, slices_waiting=waiting)
