"""What the metadata store gives back: one frozen value per row. Offsets and positions: `record.encode_position`."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from cdc_pipeline.metadata_store.ledger.cut import BEGINNING, chain_position_behind
from cdc_pipeline.metadata_store.models.states import (
    ClaimState,
    SliceState,
    TableState,
)
from cdc_pipeline.record import TableName
from cdc_pipeline.time_slice import Label


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    name: str
    source_system_identifier: str
    source_timeline: int
    slot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The right to register cuts of a stream. `next_offset`: stream partition -> where to go on reading.

    `last_position`: stream partition -> what the last cut left for its next reader. `place`: where the next cut begins.
    """

    stream: str
    owner: str
    epoch: int
    next_offset: dict[int, str]
    label: Label | None
    last_position: dict[int, dict[str, str]] = field(default_factory=dict)
    place: str = BEGINNING


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """`cutoff_*` are those of the published snapshot; `schema_id` is that of the newest registered slice file.

    No slice with a number above `horizon_number` holds an event older than `horizon`. `publication_mark`: how the
    source publishes the table for as long as nothing of its changes is missing; None: its changes are not read.
    `under_repair`: somebody compares it, or died while doing so; a late slice of what differs may come. `shape`: the
    source's catalogue of it as it was followed last. `snapshot_wanted`: a new snapshot is to be taken without asking.
    `followed_at`: the position of the last cut through which the table was read. `halted_at`: while the table is stale
    or fails, the position up to which it was followed before. Slices up to `forgotten_through` are needed no more, and
    the files of those up to `cleaned_through` are deleted.
    """

    table_id: int
    table_uuid: UUID
    stream: str
    database_name: str
    schema_name: str
    table_name: str
    source_oid: int
    state: TableState
    parked_reason: str | None
    next_slice_number: int
    cutoff_offset: str | None
    cutoff_version: str | None
    cutoff_time: datetime | None
    schema_id: str | None
    settings: dict[str, Any]
    horizon: str
    horizon_number: int
    publication_mark: str | None
    under_repair: bool
    shape: Any
    snapshot_wanted: bool
    halted_at: str | None
    followed_at: str | None
    registered_at: datetime
    forgotten_through: int
    cleaned_through: int

    @property
    def name(self) -> TableName:
        return TableName(database=self.database_name, schema=self.schema_name, table=self.table_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One cut of a stream: every event before `position` is registered. Ids rise with positions.

    `late_slices`: so many came behind it, before the next cut.
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
    def place(self) -> str:
        """Where the stream goes on."""
        return chain_position_behind(self.position, self.late_slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSlice:
    """A registered slice; `path` is None for an empty one. `position`, `commit_time`, `requested`: its boundary's.

    `truncated_at`: version of its last truncate. `late`: it may hold events older than what is applied before it.
    """

    table_id: int
    number: int
    slice_id: str
    boundary_id: int
    stream_partition: int
    label_start: datetime
    label_end: datetime
    start_offset: str
    end_offset: str
    path: str | None
    size_bytes: int
    rows: int
    sha256: str | None
    schema_id: str | None
    key_changes: int
    partial_rows: int
    truncates: int
    key_ranges: list[list[Any]]
    state: SliceState
    claim_id: UUID | None
    registered_at: datetime
    applied_at: datetime | None
    truncated_at: str | None
    late: bool
    position: str
    commit_time: datetime
    requested: bool

    @property
    def label(self) -> Label:
        return Label(start=self.label_start, end=self.label_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The run of slices first_number..last_number, both included, that goes into one commit of the lake.

    `session`: where its owner's work in the lake can be cancelled, by whoever takes over.
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
    rows_parked: int
    rows_tied: int
    session: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Slices with a file that the lake does not hold yet."""

    slices: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePosition:
    """The lake's table equals the source as of `position` and `as_of`; None before the first snapshot, and while rows
    of the snapshot are withheld. `reason`: what keeps the position from moving, None if nothing does.
    """

    table_id: int
    position: str | None
    as_of: datetime | None
    applied_through: int
    reason: str | None = None
