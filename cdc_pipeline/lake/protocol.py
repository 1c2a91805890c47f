"""What the pipeline asks of a lake."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol
from uuid import UUID

import pyarrow as pa

from cdc_pipeline.lake.differences import Comparison
from cdc_pipeline.lake.history import LakeLedger, PublishedTable, SliceIdentity
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.settings import PartitionBy

NOTHING_APPLIED = 0
"""The fence of a table whose log records no slice: slice numbers start at one."""


def always() -> None:
    """Nothing forbids the commit."""


class KeyRange(NamedTuple):
    """Both ends included; values of the first key column."""

    low: int | str
    high: int | str


def joined(spans: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Beginnings and ends, in order; spans that overlap or meet at an end are one."""
    found: list[tuple[Any, Any]] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTable:
    """One table of the lake. `table_uuid` names it in its own log, for ever. A schema without a key makes it a bag.

    `ordered`: events of one id come in the order of their versions; otherwise deletes leave tombstones.
    `keeps_dropped`: values of columns that the source dropped stay. `deletion_vectors`: what is deleted may be marked
    beside its file; otherwise the file is written anew.
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

    @property
    def app_id(self) -> str:
        return app_id_of(self.table_uuid)


def app_id_of(table_uuid: str) -> str:
    """The name under which a table's fence stands in its log."""
    return f"cdc/{table_uuid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceInput:
    """A registered slice file with at least one row; `key` is its object-store key.

    `late`: it was made from events that come behind their turn, and its schema may be an older one.
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
    """Slices first_number..last_number of one table; `slices` holds only those with rows.

    Events with a version below `cutoff_version` are ignored. `partial_rows`, `key_changes` and `truncates` count rows
    of the whole claim: where they are zero, the lake takes a cheaper way. Every id of the claim lies in one of
    `key_ranges`; none given means that no range is known. `late`: some slice may hold events older than what is
    applied. `tombstones`: deletes leave what later, older events lose against. `truncated_at`: the greatest version of
    a truncate up to `last_number`; events at or below it do nothing. `position`: where the boundary of the last slice
    lies; the lake's log keeps it.
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

    @property
    def leading(self) -> TableSchema | None:
        """The columns that the source's table has at the end of the claim; None where the claim does not tell."""
        return next((content.schema for content in reversed(self.slices) if not content.late), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """What the lake's own log says was applied last.

    `slices` are those of the last claim. It is empty, and `claim_id` is "", where the log was cleaned behind a
    checkpoint: the number then stands alone. `snapshot_id` is set when a publication moved the fence. `rewound_from`:
    the number that the fence was set back from, on purpose. `repeated_at`: the lake version since which slices that
    the lake had are in it a second time, which shows in bags alone.
    """

    number: int
    claim_id: str
    slices: tuple[SliceIdentity, ...]
    lake_version: int
    snapshot_id: str | None
    rewound_from: int | None = None
    repeated_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertOutcome:
    """Counts of ids (of a bag: rows), except `rows_read`, rows of slice files. A soft delete counts as an update.

    `ignored`: folded ids that changed nothing to be seen, being older than the lake or deletes of what is not there.
    `parked`: ids that the claim left hidden, since columns of theirs were never told. `tied`: how often events of one
    id share a sequence.
    """

    rows_read: int
    inserted: int
    updated: int
    deleted: int
    ignored: int
    parked: int = 0
    tied: int = 0
    lake_version: int
    bytes_written: int
    already_applied: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A complete Parquet file under the table's folder that no commit names yet.

    `partition_values` and `stats` (Delta's JSON) are keyed by the names that the files use.
    """

    key: str
    size_bytes: int
    rows: int
    partition_values: tuple[tuple[str, str | None], ...]
    stats: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """Staged Parquet files (source columns) of one snapshot, to become about `target_files` sorted lake files."""

    snapshot_id: str
    attempt: str
    staged_keys: tuple[str, ...]
    target_files: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePublication:
    """All data files of one snapshot, and the number of the last slice that the snapshot already holds."""

    snapshot_id: str
    files: tuple[DataFile, ...]
    fence_number: int
    table: PublishedTable | None = None


class Lake(Protocol):
    """Calls for one table come one after the other (the lease); calls for several tables may overlap."""

    def create_table(self, table: LakeTable, *, snapshot_id: str | None = None) -> None:
        """An empty table, or nothing when it is there.

        One that is there with other columns takes those of the snapshot in the commit that publishes it.
        """

    def read_fence(self, table: LakeTable, *, expected_version: int | None = None) -> Fence | None:
        """None: no such table. `expected_version`, a lake version known to exist, makes it cheaper."""

    def read_ledger(
        self, table: TableName, *, table_uuid: UUID | None = None, after: int | None = None
    ) -> LakeLedger | None:
        """None: no such table. Costs one read per commit since the fence was at `after`; see `lake.ledger`."""

    def read_version(self, table: LakeTable) -> int | None:
        """The latest lake version; None: no such table."""

    def read_columns(self, table: LakeTable) -> tuple[str, ...]:
        """Names of the source's columns as the lake has them now, without those that the source dropped.

        Those that the lake will have where there is no such table yet.
        """

    def open(self) -> str:
        """Ready to upsert; the name of the session in which that happens, for `cancel`."""

    def cancel(self, session: str, claim_id: str) -> None:
        """What a dead owner of the claim left running in its session ends, and the session too.

        Best effort: what is not cancelled in time is harmless, since the fence lets each claim in once.
        """

    def upsert(self, table: LakeTable, work: ClaimWork, *, may_commit: Callable[[], None] = always) -> UpsertOutcome:
        """Apply one claim in one commit that moves the fence; a claim that the lake has is applied no second time.

        `may_commit` is called right before the commit and raises what forbids it. Raises FenceMismatch when the lake is
        not at `first_number - 1`, LakeError when Spark refuses.
        """

    def compact(self, table: LakeTable, compaction: Compaction) -> tuple[DataFile, ...]:
        """Write data files that stay invisible until published."""

    def publish(self, table: LakeTable, publication: LakePublication) -> int:
        """Replace the whole content in one commit with the fence; the same snapshot again does nothing."""

    def rewind(self, table: LakeTable, to_version: int) -> Fence:
        """The content and the fence of an older version become the table's again, in one commit; again: nothing.

        Raises LakeError where files of that version may be deleted, or its log.
        """

    def compare(self, table: LakeTable, source_key: str, lake_version: int) -> Comparison:
        """Compares one Parquet file of source rows, in the lake's object store, with what readers see of a version.

        File and lake table have all columns of the table's schema. Reads only.
        """

    def differing_rows(self, table: LakeTable, source_key: str, lake_version: int, *, most: int) -> pa.Table:
        """Returns at most `most` rows of a keyed table that differ, as events without a version.

        OPERATION is 'i', with the source's values, for a row that the lake lacks or has with other values. It is 'd',
        with nothing but the id, for a row that only the lake has.
        """

    def keep_fence(self, table: LakeTable, *, older_than: timedelta) -> bool:
        """Whether the fence's commit was so old that it was written again: its log is cleaned, and would forget it."""

    def optimize(self, table: LakeTable) -> None:
        """Merge small files; the content stays."""

    def purge(self, table: LakeTable, below_version: str) -> None:
        """Remove dead rows whose version is lower; none where deletes are soft. Not for what may still be revived."""

    def vacuum(self, table: LakeTable, retention: timedelta) -> None:
        """Delete files that no version younger than `retention` names."""


class Clock(Protocol):
    def __call__(self) -> datetime:
        """Now, aware UTC."""
