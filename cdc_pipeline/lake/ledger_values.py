"""The history of a lake table, as values that are read from its log."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from cdc_pipeline.record import KnownClaim, TableSchema


class SliceIdentity(NamedTuple):
    """Identifies a slice. Its number alone does not, because a restored metadata store may assign it a second time."""

    number: int
    slice_id: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """What a lake table records about itself, so that it can be registered again from the lake alone.

    `stream`, `settings` and `description` are JSON of the metadata store: `description` is the source's own of the
    table, oldest first. The other fields describe the published snapshot; `kept` counts its rows that were quarantined.
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
    description: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedClaim(KnownClaim):
    """A claim as the lake's log records it. `slices` are those with a file, `position` is where the last slice ends."""

    slices: tuple[SliceIdentity, ...]
    position: str | None

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
    """The history of a table in the lake's log, oldest step first.

    `is_whole`: the log reaches back as far as was asked. `published` is known even if the log was cleaned.
    """

    fence_number: int
    lake_version: int
    steps: tuple[AppliedClaim | PublishedCommit, ...]
    published: PublishedTable | None
    is_whole: bool

    @property
    def claims(self) -> tuple[AppliedClaim, ...]:
        """The claims that the lake still contains: those that were not rewound."""
        return tuple(step for step in self.steps if isinstance(step, AppliedClaim) and not step.is_rewound)
