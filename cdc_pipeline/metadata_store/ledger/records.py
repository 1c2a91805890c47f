"""Rows of the ledger as frozen dataclasses. Offsets and positions are text, see `record.encode_position`."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from cdc_pipeline.metadata_store.ledger.cut import BEGINNING, Slice, chain_position_behind
from cdc_pipeline.metadata_store.states import ClaimState, SliceState, TableState
from cdc_pipeline.record import TableName
from cdc_pipeline.time_slice import Label


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream and the server that it comes from."""

    name: str
    source_system_identifier: str
    source_timeline: int
    slot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The right to register cuts of a stream. `next_offset`: by stream partition, the offset where reading continues.

    `last_position`: by stream partition, the positions by table that the last cut recorded. `chain_position`: where the
    next cut file is put. `label`: the label of the last registered cut.
    """

    stream: str
    owner: str
    epoch: int
    next_offset: dict[int, str]
    label: Label | None
    last_position: dict[int, dict[str, str]] = field(default_factory=dict)
    chain_position: str = BEGINNING


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A table of the source, as registered.

    `state_reason`: why it is parked or stale. `cutoff_*`: of the published snapshot. `schema_id`: of the newest
    registered slice file.
    `horizon`: no slice with a number above `horizon_number` holds an event older than this version.
    `published_as`: how the source published the table when its changes were last known to be complete; None when
    its changes are not read.
    `under_repair`: a repair is running or was killed; its late slice may still be registered. The next repair
    or snapshot ends that.
    `shape`: its columns by generation, as last read from the source's catalogue. `snapshot_wanted`: the next snapshot
    run takes a snapshot of it without a request.
    `followed_at`: the position of the last cut that read the table. `halted_at`: while the table is stale or fails, the
    position up to which it was read before.
    `forgotten_through`: slices up to this number are no longer needed. `cleaned_through`: their files up to this number
    are deleted.
    """

    table_id: int
    table_uuid: UUID
    stream: str
    database_name: str
    schema_name: str
    table_name: str
    source_oid: int
    state: TableState
    state_reason: str | None
    next_slice_number: int
    cutoff_offset: str | None
    cutoff_version: str | None
    cutoff_time: datetime | None
    schema_id: str | None
    settings: dict[str, Any]
    horizon: str
    horizon_number: int
    published_as: str | None
    under_repair: bool
    shape: Any
    snapshot_wanted: bool
    halted_at: str | None
    followed_at: str | None
    registered_at: datetime
    forgotten_through: int
    cleaned_through: int

    @property
    def excluded_columns(self) -> tuple[str, ...]:
        """Columns of the source that do not reach the lake."""
        return tuple(self.settings.get("exclude_columns", ()))

    @property
    def name(self) -> TableName:
        return TableName(database=self.database_name, schema=self.schema_name, table=self.table_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """A registered cut: every event before `position` is registered. Ids rise with positions.

    `late_slices`: the number of late slices between this cut and the next.
    """

    boundary_id: int
    stream: str
    position: str
    commit_time: datetime
    label_start: datetime
    label_end: datetime
    requested: bool
    registered_at: datetime
    late_slices: int

    @property
    def chain_position(self) -> str:
        """The chain position after the cut and its late slices."""
        return chain_position_behind(self.position, self.late_slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSlice(Slice):
    """A slice with the values that registration adds. `position`, `commit_time` and `requested` are of its boundary.

    `number`: gapless per table. `oldest_version` is None: it is not stored.
    """

    number: int
    slice_id: str
    boundary_id: int
    label_start: datetime
    label_end: datetime
    start_offset: str
    end_offset: str
    state: SliceState
    claim_id: UUID | None
    registered_at: datetime
    applied_at: datetime | None
    position: str
    commit_time: datetime
    requested: bool

    @property
    def label(self) -> Label:
        return Label(start=self.label_start, end=self.label_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The slices first_number to last_number, both included, which one commit of the lake applies.

    `session`: id by which another process can cancel the owner's work in the lake. `rows_incomplete`: the number of
    incomplete rows, which are hidden from readers.
    """

    claim_id: UUID
    table_id: int
    first_number: int
    last_number: int
    epoch: int
    owner: str
    attempt: int
    state: ClaimState
    slices: int
    rows_read: int
    rows_inserted: int
    rows_updated: int
    rows_deleted: int
    rows_ignored: int
    bytes: int
    seconds: float
    lake_version: int | None
    error: str | None
    started_at: datetime
    finished_at: datetime | None
    rows_incomplete: int
    rows_tied: int
    session: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePosition:
    """The lake's table equals the source as of `position` and `as_of`.

    Both are None before the first snapshot, and while rows of the snapshot are withheld. `reason`: what keeps the
    position from rising; None if nothing does.
    """

    table_id: int
    position: str | None
    as_of: datetime | None
    applied_through: int
    reason: str | None = None
