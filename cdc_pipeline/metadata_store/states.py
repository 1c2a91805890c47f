"""States of rows in the metadata store. Each member says who sets it and what is durable then."""

from enum import StrEnum

NOT_REGISTERED = "the table is not registered yet: run cdc setup-source"
"""Why a run ended for a table that has no state yet, in the report of the run."""
NO_LAKE = "the table has no lake yet"
"""Why maintenance ended for a table that no event or snapshot has given a lake, in its report."""


class TableState(StrEnum):
    REGISTERED = "registered"
    """Set by set-up, or when the first snapshot ends unpublished: slices can be numbered; the lake does not have the
    table yet."""
    SNAPSHOTTING = "snapshotting"
    """Set by the snapshot's orchestrator: the first snapshot is being taken."""
    LIVE = "live"
    """Set by the publication of a snapshot: the lake has the table, and slices behind the cutoff can be applied."""
    PARKED = "parked"
    """Set by the worker when the table failed for too long: it is tried only rarely, until a try succeeds."""
    STALE = "stale"
    """Set by the consumer, set-up or a rebuild: changes of the table may be missing from the stream, or another table
    has its name. Nothing is applied until a new snapshot is published."""


class SliceState(StrEnum):
    REGISTERED = "registered"
    """Set by the consumer: file, range and number are durable; the lake does not have the events yet."""
    APPLIED = "applied"
    """Set by the worker: the lake's log has the claim of the slice."""
    SUPERSEDED = "superseded"
    """Set by the publication of a snapshot whose cutoff is after the slice: the slice is never applied."""


class ClaimState(StrEnum):
    CLAIMED = "claimed"
    """Set by the worker before its work: the bounds are durable; the lake may or may not have the commit."""
    APPLIED = "applied"
    """Set by the worker: the lake's log has the claim; its row counts are recorded."""
    FAILED = "failed"
    """Set by the worker or by a publication: the claim is given up, and its slices are free for another claim."""
    REWOUND = "rewound"
    """Set by a rewind or a snapshot behind which the lake no longer has the claim: its slices wait again."""


class SnapshotState(StrEnum):
    EXPORTING = "exporting"
    """Set at creation: cutoff and schema are durable; snapshot data files are being written."""
    STAGING = "staging"
    """Set by the orchestrator: every snapshot data file is in the object store."""
    COMPACTING = "compacting"
    """Set by the orchestrator: every staging file is in the object store."""
    PUBLISHING = "publishing"
    """Set by the orchestrator: every lake file is written; the commit follows."""
    PUBLISHED = "published"
    """Set in the transaction that makes the table live: the lake's log has snapshot and fence."""
    FAILED = "failed"
    """Set by the orchestrator after an error that no retry can remove: nothing is visible in the lake."""
    ABANDONED = "abandoned"
    """Set when the run that exported it ended too early, by itself or by the next one, or when the table became stale:
    nothing is visible in the lake."""


class TaskKind(StrEnum):
    EXPORT = "export"
    """One part of the table -> one snapshot data file; without data partitions, staging files."""
    STAGE = "stage"
    """One snapshot data file -> staging files per data partition."""
    COMPACT = "compact"
    """Staging files of one data partition -> sorted lake files."""


class TaskState(StrEnum):
    WAITING = "waiting"
    """Set by the orchestrator, or by a worker slot whose attempt failed and may be repeated."""
    CLAIMED = "claimed"
    """Set by a worker slot; another slot can claim the task when the task lease has expired."""
    DONE = "done"
    """Set by the worker slot that has the task: the files that `output` names are durable."""
    FAILED = "failed"
    """Set by the worker slot that has the task, after an error that no retry can remove."""


class QuarantineState(StrEnum):
    WAITING = "waiting"
    """Set by the registration of the cut, or by a worker slot before its export is done: the whole event is stored."""
    REPLAYED = "replayed"
    """Set by a replay, in the transaction that registers the late slice with the event."""
    DROPPED = "dropped"
    """Set by a person; by the publication of a snapshot with a later cutoff, or by the registration of the cut after
    such a publication; or when its snapshot ended unpublished.
    """


class RequestState(StrEnum):
    REQUESTED = "requested"
    """Set by an Airflow task, or by a worker that hands the request back: no worker has it."""
    TAKEN = "taken"
    """Set by a resident worker; another worker can take the request when the worker's heartbeat has expired."""
    DONE = "done"
    """Set by the worker: the run succeeded, and its report is recorded."""
    FAILED = "failed"
    """Set by the worker: the run failed, and its error is recorded. Or set after too many workers died of it."""
    CANCELLED = "cancelled"
    """Set by the Airflow task that a person ended: the worker has lost the table's lease."""


FINISHED_SNAPSHOTS = (SnapshotState.PUBLISHED, SnapshotState.FAILED, SnapshotState.ABANDONED)
