"""Sets a table of the lake back to an earlier position; its later slices are applied again."""

from dataclasses import dataclass
from datetime import UTC, datetime
from string import hexdigits

import structlog

from cdc_pipeline.apply.slice_to_lake import SliceWorker
from cdc_pipeline.apply.table_work import TableWork
from cdc_pipeline.errors import ObjectMissing, SliceDamaged, SnapshotError, UsageError
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.metadata_store.operations.rewinds import RewindTarget
from cdc_pipeline.record import TableName, encode_position, parse_lsn
from cdc_pipeline.steps import step

log = structlog.get_logger()

NOTHING_NEW = 0
_POSITION_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """The lake's table equals the source as of `position` again. `slices_waiting`: the number of later slices."""

    table: TableName
    position: str
    as_of: datetime
    slices_waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """Sets tables of the lake back. A rewind may be killed at any step and repeated."""

    work: TableWork
    worker: SliceWorker

    def run(self, table: TableName, to: str) -> Rewound:
        """Sets the table back to the end of the last claim at or before `to`, a position or a time.

        A claim that a dead worker left open is cancelled and not applied: its slices wait again with the later ones.
        If the lake is set back already, to before `to`, because a rewind was killed, it stays there.

        Raises LeaseBusy while another process works on the table, UsageError for a position before its snapshot,
        LakeError when files of that lake version may be deleted, SliceDamaged when a needed slice file is gone,
        FenceMismatch when that lake version does not end where the metadata store says.
        """
        row = self.work.store.tables.table(table)
        position, moment = parse_target(to)
        with self.work.leased(row.table_id) as held:
            if self.work.store.snapshots.active_snapshot(row.table_id) is not None:
                raise SnapshotError(f"a snapshot of {table} is being taken", remedy="rewind when it has ended")
            claim = self.work.store.claims.open_claim(row.table_id)
            if claim is not None and claim.session:  # its MERGE may still run in Spark, and would commit afterwards
                self.work.lake.cancel(claim.session, str(claim.claim_id))
            self.worker.apply_held(*held, table, before=NOTHING_NEW)
            self._record_earlier(held[0], table)
            target = self.work.store.rewinds.target(row.table_id, position=position, moment=moment)
            if target is None:
                raise UsageError(
                    f"nothing of {table} was applied at or before {to}",
                    expected="a position after the cutoff of its last snapshot, whose slices are kept (keep.slices)",
                    remedy="look at cdc sql claims, or take a new snapshot",
                )
            self._check_slice_files(row.table_id, target.number + 1, row.next_slice_number - 1)
            held[1].check()
            self.work.lake.rewind(self.work.lake_table(table), target.lake_version, fence_then=target.number)
            self.work.store.rewinds.reopen(held[0], after=target.number)
        return _rewound(table, target, row.next_slice_number)

    def _record_earlier(self, lease: Lease, table: TableName) -> None:
        """Records a rewind that was killed behind its commit in the lake, so that no claim behind it is a target."""
        fence = self.work.lake.read_fence(self.work.lake_table(table))
        if fence is not None and fence.rewound_from is not None:
            self.work.store.rewinds.reopen(lease, after=fence.number)

    def _check_slice_files(self, table_id: int, first: int, last: int) -> None:
        """Checks that the files of all slices that will be applied again are still there."""
        for row in self.work.store.slices.slices(table_id, first, last):
            try:
                with step(self.work.on_step, "slice_file.head"):
                    self.work.objects.head(row.path)
            except ObjectMissing as error:
                raise SliceDamaged(
                    f"the slice file {row.path} is gone, and would be needed again",
                    expected="every slice file after the position to go back to",
                    remedy="choose a later position, or take a new snapshot",
                ) from error


def parse_target(text: str) -> tuple[str | None, datetime | None]:
    """Reads a position (`0/8D3FAF8`, or 16 hexadecimal digits), or a time in ISO 8601 with its zone."""
    try:
        if "/" in text:
            return encode_position(parse_lsn(text)), None
        if len(text) == _POSITION_DIGITS and set(text) <= set(hexdigits):
            return encode_position(int(text, 16)), None
        moment = datetime.fromisoformat(text)
        in_utc = moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise _no_target(text) from error
    if moment.tzinfo is None:
        raise _no_target(text)
    return None, in_utc


def _no_target(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is no position or time to go back to",
        expected="a position such as 0/8D3FAF8, or a moment such as 2026-01-31T12:00:00Z",
        remedy="take one that cdc status or cdc sql boundaries shows",
    )


def _rewound(table: TableName, target: RewindTarget, next_number: int) -> Rewound:
    waiting = next_number - 1 - target.number
    log.info("table rewound", table=str(table), position=target.position, slices_waiting=waiting)
    return Rewound(table=table, position=target.position, as_of=target.time, slices_waiting=waiting)
