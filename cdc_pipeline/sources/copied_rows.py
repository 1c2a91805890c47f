"""A position of a source that is held, and the rows of a table as of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from cdc_pipeline.record import SNAPSHOT_ORDINAL, encode_position, encode_version


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPosition:
    """Transactions that committed before `position` are in a copy of it, all others come later in the stream.

    `shown`: the position as the source writes it. `time`: the source's clock when it was taken. `exported`: the name by
    which other processes can copy as of it while it is held.
    """

    position: int
    shown: str
    time: datetime
    exported: str

    @property
    def offset(self) -> str:
        return encode_position(self.position)

    @property
    def version(self) -> str:
        """Of every row of a copy: older than any event that commits at the position."""
        return encode_version(self.position, SNAPSHOT_ORDINAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfitRow:
    """A row that the lake cannot hold, by its number in the block: why, and the source's texts of all its columns.

    Texts may be no valid UTF-8.
    """

    row: int
    column: str
    reason: str
    texts: Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedRows:
    """All rows of one block. Values that the lake's type cannot hold are NULL in `rows`.

    `unfit_rows`: rows with such values, and rows without an id.
    """

    rows: pa.RecordBatch
    unfit_rows: tuple[UnfitRow, ...]
