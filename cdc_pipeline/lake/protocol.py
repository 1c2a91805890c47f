"""The `Lake` protocol: the calls that the pipeline makes to a lake, and the values that they take and return."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, Protocol
from uuid import UUID

import pyarrow as pa

from cdc_pipeline.lake.decay import EVERYTHING, Optimization
from cdc_pipeline.lake.differences import Comparison
from cdc_pipeline.lake.ledger_values import LakeLedger, PublishedTable, SliceIdentity
from cdc_pipeline.record import ClaimCounts, TableName, TableSchema
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.settings.work import MaintenanceSettings

NOTHING_APPLIED = 0
"""The fence number of a table to which no slice was applied. Slice numbers start at 1."""


def always() -> None:
    """Allows every commit. This is the default of `may_commit`."""


class KeyRange(NamedTuple):
    """A range of values of the first key column. Both ends are included."""

    low: int | str
    high: int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTable:
    """One table of the lake. A schema without a key makes it a keyless table.

    `table_uuid` identifies the table in its own Delta log and never changes. `ordered`: the events of one id arrive in
    the order of their versions; if False, deletes leave tombstones. `keeps_dropped`: columns that the source dropped
    keep their values. `deletion_vectors`: deletes may mark rows in vectors; if False, they rewrite data files.
    `keeps_history`: it has a history table; `is_history`: it is one. `source_id`: the source's number of it, or 0.
    """

    name: TableName
    table_uuid: str
    schema: TableSchema
    partition_by: tuple[PartitionBy, ...] = ()
    deletes: Literal["hard", "soft"] = "hard"
    ordered: bool = True
    create_time: str | None = None
    update_time: str | None = None
    keeps_dropped: bool = True
    deletion_vectors: bool = True
    keeps_history: bool = False
    is_history: bool = False
    source_id: int = 0

    @property
    def app_id(self) -> str:
        return app_id_of(self.table_uuid)


def app_id_of(table_uuid: str) -> str:
    """Returns the Delta application id under which a table's log records its fence."""
    return f"cdc/{table_uuid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceInput:
    """A registered slice file; `key` is its object-store key.

    `late`: the slice holds replayed or repaired events. Its schema may be older than that of earlier slices.
    """

    number: int
    slice_id: str
    key: str
    rows: int
    sha256: str
    schema: TableSchema
    late: bool = False

    @property
    def identity(self) -> SliceIdentity:
        return SliceIdentity(self.number, self.slice_id, self.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimWork:
    """The consecutive slices `first_number` to `last_number` of one table; `slices` has only those with a file.

    Events with a version below `cutoff_version` are ignored. `partial_rows`, `key_changes` and `truncates` count rows
    of the whole claim; where one is zero, the lake uses a cheaper plan. Each id of the claim lies in one of
    `key_ranges`; if there are none, no range is known. `late`: a slice may hold events older than those already
    applied. `tombstones`: deletes leave tombstones, against older events that arrive later. `truncated_at`: the
    greatest version of a truncate up to `last_number`; events at or below it have no effect. `position`: the position
    of the last slice's boundary, which the lake's log records. `horizon`: no later claim has an event older than it.
    """

    claim_id: str
    first_number: int
    last_number: int
    slices: tuple[SliceInput, ...]
    cutoff_version: str = ""
    partial_rows: int = 0
    key_changes: int = 0
    truncates: int = 0
    key_ranges: tuple[KeyRange, ...] = ()
    late: bool = False
    tombstones: bool = False
    truncated_at: str = ""
    position: str = ""
    horizon: str = ""

    @property
    def leading(self) -> TableSchema | None:
        """The source's schema at the end of the claim. None if the claim has no slice file that is not late."""
        return next((content.schema for content in reversed(self.slices) if not content.late), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The last applied slice, as the lake's own log records it.

    `slices`: of the last claim. If the log before a checkpoint was cleaned, only the number is known: `slices` is empty
    and `claim_id` is "". `snapshot_id` is set if a publication moved the fence. `rewound_from`: the fence number before
    a rewind moved it. `repeated_at`: the first lake version in which slices were applied a second time; this changes
    the rows of keyless tables only. `in_history`: the claim was applied to the table's history too.
    """

    number: int
    claim_id: str
    slices: tuple[SliceIdentity, ...]
    lake_version: int
    snapshot_id: str | None
    rewound_from: int | None = None
    repeated_at: int | None = None
    in_history: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertOutcome:
    """`already_applied`: the lake had the claim before this call."""

    counts: ClaimCounts
    lake_version: int
    bytes_written: int = 0
    already_applied: bool = False
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A complete Parquet file in the table's folder that no commit refers to yet.

    `partition_values` and `stats` (Delta's JSON) use the column names that files have inside.
    """

    key: str
    size_bytes: int
    rows: int
    partition_values: tuple[tuple[str, str | None], ...]
    stats: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """The staged Parquet files of one snapshot, to be written as about `target_files` sorted lake files.

    Staged files have the source's columns. All rows get `version`, and in each data partition column `partition`.
    """

    snapshot_id: str
    attempt: str
    staged_keys: tuple[str, ...]
    target_files: int
    version: str
    partition: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePublication:
    """All data files of one snapshot. `fence_number` is the last slice whose changes the snapshot already contains.

    `replaces`: the lake version whose fence may be higher, because the snapshot is older; later slices are applied
    again. None if no fence may be higher. `begins`: refused if the lake already has a snapshot of the table, since all
    rows come by its stream. Publishing it again does nothing. `started_at`: when the snapshot began, if known.
    """

    snapshot_id: str
    files: tuple[DataFile, ...]
    fence_number: int
    table: PublishedTable | None = None
    replaces: int | None = None
    begins: bool = False
    started_at: datetime | None = None


class Lake(Protocol):
    """Calls for one table never overlap, because their caller holds the lease. Calls for several tables may overlap."""

    def create_table(self, table: LakeTable, *, snapshot_id: str | None = None) -> None:
        """Creates an empty table. Does nothing if the table exists.

        An existing table with other columns gets those of the snapshot in the commit that publishes the snapshot.
        """

    def read_fence(self, table: LakeTable) -> Fence | None:
        """Returns None if there is no such table."""

    def read_ledger(
        self, table: TableName, *, table_uuid: UUID | None = None, after: int | None = None
    ) -> LakeLedger | None:
        """Returns None if there is no such table.

        Costs one read for each commit since the fence was at `after`. See `lake.ledger`.
        """

    def read_version(self, table: LakeTable) -> int | None:
        """Returns the latest lake version, or None if there is no such table."""

    def read_columns(self, table: LakeTable) -> tuple[str, ...]:
        """Returns the lake's current names of the source's columns, without columns that the source dropped.

        If there is no lake table yet, returns the columns that it will have.
        """

    def open(self) -> str:
        """Opens a session, unless one is open. Returns its name, for `cancel`."""

    def close(self) -> None:
        """Ends the session, if one is open. The next call that needs one opens another one."""

    def cancel(self, session: str, claim_id: str) -> None:
        """Cancels what a former owner of the claim left running in its session, and ends that session.

        Best effort: work that is not cancelled in time is harmless, because the fence lets each claim commit once.
        """

    def upsert(self, table: LakeTable, work: ClaimWork, *, may_commit: Callable[[], None] = always) -> UpsertOutcome:
        """Applies one claim in one commit that moves the fence. A claim that the lake already has is not applied again.

        `may_commit` is called right before the commit and raises an error to forbid it. The commit is durable on
        return. Raises FenceMismatch if the lake is not at `first_number - 1`, LakeError if Spark fails.
        """

    def compact(self, table: LakeTable, compaction: Compaction) -> tuple[DataFile, ...]:
        """Writes data files. They stay invisible until they are published."""

    def repeated_id(self, table: LakeTable, staged_keys: Sequence[str]) -> tuple[object, ...] | None:
        """Returns an id that several of the staged rows have. None if there is none."""

    def publish(self, table: LakeTable, content: LakePublication, *, may_commit: Callable[[], None] = always) -> int:
        """Replaces all content and the fence in one commit; returns its version. `may_commit` guards those after work.

        With soft deletes the rows that the snapshot lacks stay, flagged as deleted; see `lake.deleted_rows`.
        """

    def rewind(self, table: LakeTable, to_version: int, *, fence_then: int | None) -> Fence:
        """Restores the content and the fence of an older version in one commit. Repeating the call does nothing.

        Raises LakeError if its log or files may have been deleted, FenceMismatch if its fence was not `fence_then`.
        """

    def compare(self, table: LakeTable, source_key: str, lake_version: int, *, as_of: str | None = None) -> Comparison:
        """Compares one Parquet file of source rows, in the lake's object store, with what readers see of a version.

        Both have the schema's columns. `as_of`: of a history, the source's version; None: the periods that go on.
        """

    def differing_rows(self, table: LakeTable, source_key: str, lake_version: int, *, most: int) -> pa.Table:
        """Returns at most `most` rows of a keyed table that differ, as events without a version, one per id.

        OPERATION is 'u', with the source's values, for a row that the lake lacks, has with other values or more than
        once; 'd', with nothing but the id, for one that only the lake has. Of a history: the periods that go on.
        """

    def keep_fence(self, table: LakeTable, *, older_than: timedelta) -> bool:
        """Repeats the fence in a new commit if its last commit is older than `older_than`. Returns whether it did.

        Otherwise Delta's cleaning of the log would remove what that commit records about the fence.
        """

    def optimize(
        self, table: LakeTable, need: MaintenanceSettings = EVERYTHING, *, claimed_at: int | None = None
    ) -> Optimization:
        """Rewrites files that have decayed by `need`. The content does not change.

        After a claim with version `claimed_at`, looks for them only if enough versions came since it last did.
        """

    def purge(self, table: LakeTable, below_version: str) -> None:
        """Removes tombstones with a lower version, below which no event can still arrive; none with soft deletes."""

    def vacuum(self, table: LakeTable) -> None:
        """Deletes files that no kept version of the table needs, and unfinished files of killed writes."""


class Clock(Protocol):
    def __call__(self) -> datetime:
        """Returns the current time, aware UTC."""
