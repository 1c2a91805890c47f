"""Lifecycles of the metadata store: each member says who sets it and what is durable then."""

from enum import StrEnum


class TableState(StrEnum):
    REGISTERED = "registered"
    """Set by the consumer: the table is known and its slices are numbered; the lake has nothing of it."""
    SNAPSHOTTING = "snapshotting"
    """Set by the snapshot's orchestrator: a first snapshot with a cutoff is being built."""
    LIVE = "live"
    """Set by the publication of a snapshot: the lake holds the table, slices behind the cutoff can be applied."""
    PARKED = "parked"
    """Set by the worker when a table failed for too long: only rare probes are made, until one succeeds."""
    STALE = "stale"
    """Set by the consumer: changes of the source's table are missing from the stream, or it is another table now.
    Nothing is applied, and only the publication of a new snapshot ends it."""


class SliceState(StrEnum):
    REGISTERED = "registered"
    """Set by the consumer: file, range and number are durable; the lake does not hold the events yet."""
    APPLIED = "applied"
    """Set by the worker after the lake's own log carried the claim."""
    SUPERSEDED = "superseded"
    """Set by the publication of a snapshot whose cutoff lies behind the slice: it is never applied."""


class ClaimState(StrEnum):
    CLAIMED = "claimed"
    """Set by the worker before the work: the bounds are durable, the lake may or may not have the commit."""
    APPLIED = "applied"
    """Set by the worker: the lake's log carries the claim, the metrics are kept."""
    FAILED = "failed"
    """Set by the worker or by a publication: the claim is given up, its slices are free for another."""
    REWOUND = "rewound"
    """Set by a worker when the lake was set back to before the claim: its slices wait again."""


class SnapshotState(StrEnum):
    EXPORTING = "exporting"
    """Set at creation: cutoff and schema are durable; snapshot data files are being written."""
    STAGING = "staging"
    """Set by the orchestrator: every snapshot data file is in the object store."""
    COMPACTING = "compacting"
    """Set by the orchestrator: every staging file is in the object store."""
    PUBLISHING = "publishing"
    """Set by the orchestrator: every lake file is written; the one commit is about to be made."""
    PUBLISHED = "published"
    """Set in the transaction that makes the table live: the lake's log carries snapshot and fence."""
    FAILED = "failed"
    """Set by the orchestrator: an error that no retry mends; nothing is visible in the lake."""
    ABANDONED = "abandoned"
    """Set by a person or by a newer snapshot: nothing is visible in the lake."""


class TaskKind(StrEnum):
    EXPORT = "export"
    """Source rows of a ctid range -> one snapshot data file."""
    STAGE = "stage"
    """One snapshot data file -> staging files per data partition."""
    COMPACT = "compact"
    """Staging files of one data partition -> sorted lake files."""


class TaskState(StrEnum):
    WAITING = "waiting"
    """Set by the orchestrator, or by a worker slot whose try failed and may be repeated."""
    CLAIMED = "claimed"
    """Set by a worker slot; free for another one when its task lease has expired."""
    DONE = "done"
    """Set by the worker slot that holds the attempt: the files named in `output` are durable."""
    FAILED = "failed"
    """Set by the worker slot that holds the attempt: no retry mends it."""


class QuarantineState(StrEnum):
    WAITING = "waiting"
    """Set by the consumer with the cut, or by a worker slot before its export is done: the event is kept here whole."""
    REPLAYED = "replayed"
    """Set by a person's replay, in the transaction that registers the late slice which holds the event."""
    DROPPED = "dropped"
    """Set by a person, or by the snapshot that replaced or never became what the event belongs to."""


FINISHED_SNAPSHOTS = (SnapshotState.PUBLISHED, SnapshotState.FAILED, SnapshotState.ABANDONED)
