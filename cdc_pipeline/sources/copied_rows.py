"""Records of a held position of a source, and of a table's rows as of that position."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from cdc_pipeline.record import SNAPSHOT_ORDINAL, encode_position, encode_version

TEXT = "t"
"""Begins the version of an event that is ordered by fields of which the first is a text; texts sort above numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPosition:
    """A position at which tables can be copied while it is held.

    A copy holds the transactions that committed before `position`; all others come later in the stream. `shown`: the
    position as the source writes it. `time`: the source's clock when the position was taken. `exported`: the name by
    which other processes open a copy at the position. `row_version`: the version of every copied row, "" for the one
    that follows from the position.
    """

    position: int
    shown: str
    time: datetime
    exported: str
    row_version: str = ""

    @property
    def offset(self) -> str:
        return encode_position(self.position)

    @property
    def version(self) -> str:
        """The version of every copied row. It is older than any event that commits at the position."""
        return self.row_version or encode_version(self.position, SNAPSHOT_ORDINAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPosition:
    """A position of the source as a person wrote it: rows as of it contain the changes before it, and no others.

    `position`: where the stream continues, None if its positions do not say which changes come before. Then
    `row_version` is above the versions of the changes before, and below all others; "" if it follows from `position`.
    `time`: when that was, None if it is not known.
    """

    position: int | None
    row_version: str = ""
    time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfitRow:
    """A row that the lake cannot hold, and why. `row`: its number in the block.

    `texts`: the values of all its columns as the source's texts, which may be invalid UTF-8.
    """

    row: int
    column: str
    reason: str
    texts: Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedRows:
    """All rows of one block of a copy. Values that the lake's type cannot hold are NULL in `rows`.

    `unfit_rows`: the rows that have such values or no id.
    """

    rows: pa.RecordBatch
    unfit_rows: tuple[UnfitRow, ...]
