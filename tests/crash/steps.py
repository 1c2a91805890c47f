"""The names of all steps that the four verbs take. A new outside call brings a new name, and belongs in here.

Dying before or after a read leaves the world as the step before it left it, so nothing is killed there; nor at the
moment ACKNOWLEDGED, since nothing happens between it and AFTER.
"""

from cdc_pipeline.steps import Moment
from tests.crash.failpoint import Site

READS = frozenset(
    {
        "claim.read_open",
        "clock.read",
        "failure.read",
        "fence.read",
        "lake_claim.fold",
        "lake_schema.read",
        "quarantine.await",
        "schema.read",
        "slice.read",
        "slice.read_next",
        "slice.read_truncated",
        "slice_file.get",
        "snapshot.read",
        "snapshot.read_active",
        "snapshot.read_ended",
        "snapshot.read_fence",
        "snapshot.read_published",
        "snapshot_file.get",
        "snapshot_task.list",
        "source.check",
        "store.open",
        "stream.read_offset",
        "table.list",
        "table.read",
    }
)
SET_UP = frozenset({"source.set_up", "stream.register", "table.register", "schema.record"})
STREAM_TO_SLICES = frozenset(
    {
        "registry.register",
        "schema.record",
        "slice_file.put",
        "slot.confirm",
        "source.mark",
        "stream.register",
        "stream.take",
        "table.register",
    }
)
SLICE_TO_LAKE = frozenset(
    {
        "claim.mark_applied",
        "claim.record",
        "lake_file.put",
        "lake_table.merge",
        "lease.acquire",
        "lease.release",
    }
)
SNAPSHOT_TO_STAGING = frozenset(
    {
        "lease.acquire",
        "lease.release",
        "position.hold",
        "snapshot.create",
        "snapshot.set_state",
        "snapshot_file.put",
        "snapshot_task.add",
        "snapshot_task.claim",
        "snapshot_task.finish",
        "source.copy",
        "staging_file.put",
    }
)
STAGING_TO_LAKE = frozenset(
    {
        "lake_file.put",
        "lake_table.create",
        "lease.acquire",
        "lease.release",
        "snapshot.publish",
        "snapshot.set_state",
        "snapshot_task.add",
        "snapshot_task.claim",
        "snapshot_task.finish",
    }
)


def lethal(recorded: list[Site], expected: frozenset[str]) -> list[Site]:
    """Before and after every step that changes something. Fails when the steps are not the expected ones."""
    names = {site.name for site in recorded} - READS
    assert names == expected, f"not in the list: {names - expected}; no longer taken: {expected - names}"
    return [site for site in recorded if site.name not in READS and site.moment is not Moment.ACKNOWLEDGED]
