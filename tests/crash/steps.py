"""The names of all steps that there are. A new outside call brings a new name, and belongs in here.

Where deaths differ: before the first step, and after each one that changes something. Dying before a step leaves the
world as dying after the step before it; reads change nothing. AFTER and ACKNOWLEDGED leave the same world too when the
process dies, for what it knew dies with it. They differ when it lives: at AFTER the effect stands and the answer may be
lost, which `LostAnswer` makes of every step; at ACKNOWLEDGED the answer is known, and the next step is what follows.
"""

from cdc_pipeline.errors import CdcError, LakeError, ObjectStoreAway, SourceAway, StoreAway
from cdc_pipeline.steps import Moment
from tests.crash.failpoint import Site

READS = frozenset(
    {
        "chain_base.get",
        "chain_base.list",
        "claim.read_open",
        "clock.read",
        "consumer.read",
        "cut_file.get",
        "failure.read",
        "fence.read",
        "inspection.run",
        "kept_rows.get",
        "lake_claim.deduplicate",
        "lake_files.read",
        "lake_owner.get",
        "lake_schema.read",
        "lake_table.compare",
        "lake_version.read",
        "ledger.read",
        "old_objects.list",
        "position.read",
        "position.read_boundary",
        "position.read_last_boundary",
        "position.read_next",
        "position.read_vector",
        "quarantine.read",
        "removal.check",
        "retention.read",
        "rewind.read_place",
        "schema.read",
        "slice.await_late",
        "slice.read",
        "slice.read_next",
        "slice.read_truncated",
        "slice_request.read",
        "slice_file.get",
        "slice_file.head",
        "snapshot.list",
        "snapshot.read",
        "snapshot.read_active",
        "snapshot.read_ended",
        "snapshot.read_fence",
        "snapshot.read_published",
        "snapshot.read_withheld",
        "snapshot_file.get",
        "snapshot_files.list",
        "snapshot_task.count",
        "snapshot_task.list",
        "source.check",
        "source.compute",
        "source_file.read",
        "source_log.read",
        "staging_file.get",
        "store.open",
        "stream.read",
        "stream.read_files",
        "stream.read_offset",
        "stream.read_owner",
        "stream.read_partitions",
        "stream.read_place",
        "stream.read_places",
        "table.list",
        "table.read",
    }
)
SET_UP = frozenset(
    {"lake_owner.put", "source.set_up", "stream.register", "table.register", "table.set_shapes", "schema.record"}
)
STREAM_TO_SLICES = frozenset(
    {
        "cut_file.put",
        "registry.register",
        "schema.record",
        "slice_file.put",
        "slot.confirm",
        "source.mark",
        "source_log.record",
        "stream.register",
        "stream.take",
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
OF_REQUESTS = frozenset({"resident_worker.leave", "resident_worker.renew", "slice_request.end", "slice_request.take"})
RESIDENT_WORKER = SLICE_TO_LAKE | OF_REQUESTS
SNAPSHOT_TO_STAGING = frozenset(
    {
        "lease.acquire",
        "lease.release",
        "position.hold",
        "schema.record",
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
IN_TWO_PASSES = frozenset({"snapshot_file.put"})
"""Of a table with data partitions alone: the export of another one writes its staging files."""
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
RETENTION = frozenset(
    {
        "chain_base.put",
        "lease.acquire",
        "lease.release",
        "old_objects.delete",
        "retention.delete_rows",
        "retention.forget",
        "retention.mark_cleaned",
    }
)


AFTER_FAULTS = frozenset(
    {
        "lake_claim.cancel",
        "claim.mark_applied_through",
        "claim.mark_failed",
        "claim.resume",
        "failure.clear",
        "failure.record",
        "fence.move",
        "slice.mark_damaged",
        "snapshot_task.fail",
        "stream.follow",
        "stream.raise_alarm",
        "table.end_change",
        "table.follow",
        "table.mark_stale",
        "table.want_snapshot",
    }
)
"""What the four verbs do only when something went wrong, or when nothing at all happened for long."""
IN_TIME = frozenset({"consumer.beat", "lease.renew", "snapshot_task.renew"})
"""Taken by a thread beside the work when a part of a lease, or of a consumer's lifetime, is over."""
SHARED_STREAMS = frozenset({"consumer.leave", "consumer.take_share"})
"""Of consumers that share a stream: killed on a real broker, tests/integration/kafka."""
ON_SPARK = frozenset(
    {
        "lake_files.write",
        "lake_log.checkpoint",
        "lake_log.clean",
        "lake_log.name_checkpoint",
        "lake_schema.commit",
        "lake_schema.prepare",
        "lake_vectors.put",
        "snapshot_files.write",
    }
)
"""What a lake on Spark does besides: killed by `make chaos`."""
OF_HISTORIES = frozenset({"lake_history.commit"})
"""Of tables with a history, before the commit of the table: killed in tests/integration/lake/test_history.py."""
OTHER_VERBS = frozenset(
    {
        "horizon.promise",
        "kept_rows.put",
        "lake_table.optimize",
        "lake_table.purge",
        "lake_table.rewind",
        "lake_table.vacuum",
        "ledger.rebuild",
        "quarantine.drop",
        "quarantine.keep",
        "quarantine.replay",
        "removed_objects.delete",
        "rewind.reopen",
        "scratch.delete",
        "scratch.put",
        "slice_request.ask",
        "slice_request.ask_again",
        "slice_request.cancel",
        "slice_request.go_on_no_longer",
        "source.begin_again",
        "source.drop_publication",
        "source.drop_slot",
        "source.leave",
        "source.replace_slot",
        "store.upgrade",
        "stream.begin_again",
        "stream.begin_file",
        "stream.remove",
        "table.begin_again",
        "table.remove",
        "table.repair",
        "verification_file.delete",
        "verification_file.put",
    }
)
"""Of maintenance, rewind, repair, replay, verification, warm-up, upgrade, new beginnings, sources that are files, and
of Airflow's tasks that ask for slice runs."""
IN_TESTS_ALONE = frozenset({"lake_file.put"})
"""Of the fast lake."""
ALL = frozenset().union(
    *(READS, SET_UP, STREAM_TO_SLICES, RESIDENT_WORKER, SNAPSHOT_TO_STAGING, STAGING_TO_LAKE, RETENTION),
    *(AFTER_FAULTS, IN_TIME, OF_HISTORIES, ON_SPARK, OTHER_VERBS, SHARED_STREAMS),
)

_AWAY: dict[type[CdcError], frozenset[str]] = {
    SourceAway: frozenset({"position", "slot", "source"}),
    LakeError: frozenset({"lake_claim", "lake_schema", "lake_table", "snapshot_files"}),
    ObjectStoreAway: frozenset(
        {
            "chain_base.put",
            "cut_file.put",
            "lake_file.put",
            "lake_owner.put",
            "old_objects.delete",
            "slice_file.put",
            "snapshot.publish",
            "snapshot_file.put",
            "staging_file.put",
        }
    ),
}
"""What a step's call raises when its answer is lost, by the step's noun or name; of all others it is StoreAway."""


def changes(name: str) -> bool:
    return name not in READS


def lethal(recorded: list[Site], expected: frozenset[str]) -> list[Site]:
    """Before the first step and after every one that changes something. Fails when they are not the expected ones."""
    names = {site.name for site in recorded if changes(site.name)}
    assert names == expected, f"not in the list: {names - expected}; no longer taken: {expected - names}"
    first, *others = [site for site in recorded if changes(site.name)]
    return [first, *(site for site in others if site.moment is Moment.AFTER)]


def lost_answer(name: str) -> CdcError:
    noun = name.partition(".")[0]
    away = next((away for away, names in _AWAY.items() if noun in names or name in names), StoreAway)
    return away(f"the answer of {name} is lost")
