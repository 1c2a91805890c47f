"""What a process needs to work on tables of the lake, and the lease under which it works on one."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from threading import Event

import structlog

from cdc_pipeline.errors import CdcError, LeaseBusy
from cdc_pipeline.lake.protocol import Lake, LakeTable
from cdc_pipeline.metadata_store.lease_keeper import LeaseKeeper, renewed
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import OnStep

log = structlog.get_logger()

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWork:
    """`owner`, `lease_length`: of the leases that this process takes. `lake_table` describes a table as it is now."""

    owner: str
    lease_length: timedelta
    store: MetadataStore
    objects: ObjectStore
    lake: Lake
    lake_table: Callable[[TableName], LakeTable]
    on_step: OnStep

    @contextmanager
    def leased(self, table_id: int) -> Iterator[tuple[Lease, LeaseKeeper]]:
        """Acquires the table's lease for the block, and releases it when the block ends or raises.

        Raises LeaseBusy, without waiting, when somebody has it. A lease that cannot be released expires by itself:
        that is only logged, because what the block did is done.
        """
        leases, duration = self.store.leases, self.lease_length
        sent = time.monotonic()
        lease = leases.acquire(table_id, owner=self.owner, duration=duration)
        what = f"table {table_id}, epoch {lease.epoch}"
        try:
            with renewed(lambda: leases.renew(lease, duration=duration), duration, sent=sent, what=what) as keeper:
                yield lease, keeper
        finally:
            try:
                leases.release(lease)
            except CdcError as error:
                log.warning(
                    "lease not released, it expires", of=what, seconds=duration.total_seconds(), found=error.found
                )

    @contextmanager
    def leased_when_free(self, table_id: int, deadline: float) -> Iterator[tuple[Lease, LeaseKeeper]]:
        """Like `leased`, but tries again while the lease is busy, until the monotonic time is `deadline`."""
        with ExitStack() as holding:
            held = None
            while held is None:
                try:
                    held = holding.enter_context(self.leased(table_id))
                except LeaseBusy as busy:
                    if time.monotonic() > deadline:
                        raise LeaseBusy(
                            busy.found,
                            expected="nobody at work on the table",
                            remedy="look at cdc status, then try again when that work has ended",
                        ) from busy
                    Event().wait(_POLL_SECONDS)
            yield held
