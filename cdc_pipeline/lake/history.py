"""What a lake table's log tells of its past, as values."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from cdc_pipeline.record import TableSchema


class SliceIdentity(NamedTuple):
    """What tells a slice from any other: its number alone may be given twice by a restored metadata store."""

    number: int
    slice_id: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """What a lake table keeps of itself, so that nothing but the lake is needed to know it again.

    `stream` and `settings` are JSON objects of the metadata store. The rest is that of the published snapshot; so many
    of its rows were `kept` aside.
    """

    table_uuid: UUID
    source_oid: int
    stream: Mapping[str, Any]
    settings: Mapping[str, Any]
    schema: TableSchema
    snapshot_id: str
    fence_number: int
    cutoff_offset: str
    cutoff_version: str
    cutoff_time: datetime
    rows: int
    files: int
    bytes: int
    kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedClaim:
    """A claim as the lake's log records it; `slices` are those with rows, `position` where its last slice ends.

    `is_rewound`: the lake was set back to before it since.
    """

    claim_id: UUID
    first_number: int
    last_number: int
    slices: tuple[SliceIdentity, ...]
    position: str | None
    lake_version: int
    committed_at: datetime
    is_rewound: bool = False

    @property
    def key(self) -> str:
        return str(self.claim_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCommit:
    """A publication as the lake's log records it."""

    snapshot_id: str
    fence_number: int
    lake_version: int
    committed_at: datetime
    table: PublishedTable | None

    @property
    def key(self) -> str:
        return self.snapshot_id


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeLedger:
    """What the lake's log tells of a table, oldest step first. `is_whole`: it reaches back as far as was asked.

    `published` stays also when the log was cleaned.
    """

    fence_number: int
    lake_version: int
    steps: tuple[AppliedClaim | PublishedCommit, ...]
    published: PublishedTable | None
    is_whole: bool

    @property
    def claims(self) -> tuple[AppliedClaim, ...]:
        """What the lake holds of them."""
        return tuple(step for step in self.steps if isinstance(step, AppliedClaim) and not step.is_rewound)
