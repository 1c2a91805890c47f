"""The base of a chain of cut files: what a store needs of the earlier cuts after their files are deleted."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from cdc_pipeline.consume.cut_file import (
    CutFile,
    TableIdentity,
    damage_named,
    identity_of,
    json_bytes,
    label_values,
    table_array,
)
from cdc_pipeline.errors import RegistryError
from cdc_pipeline.metadata_store.ledger.cut import Cut, PartitionRange, chain_position_behind, gap_reason, late_reason
from cdc_pipeline.metadata_store.ledger.records import Boundary, SourceTable, Stream
from cdc_pipeline.record import TableName, encode_position
from cdc_pipeline.time_slice import Label

FORMAT = 1
REMEDY = "run cdc rebuild: it rebuilds the metadata store from bucket and lake"
_NOTHING_READ = encode_position(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadThrough:
    """The next offset of a stream partition after the base, and the last positions that its reader needs there."""

    stream_partition: int
    next_offset: str
    last_position: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainBase:
    """The state of a stream at the boundary at `position`, after the `late_slices` late slices that follow it.

    The lake has every slice up to there. `rows`: by table of the metadata store, the rows that are kept when the other
    rows of earlier cuts are deleted (`BaseRows.read`).
    """

    stream: Stream
    position: str
    late_slices: int
    commit_time: datetime
    label: Label
    partitions: tuple[ReadThrough, ...]
    tables: tuple[TableIdentity, ...]
    rows: Mapping[str, list[dict[str, Any]]]

    @property
    def chain_position(self) -> str:
        """The chain position of the first cut file after the base."""
        return chain_position_behind(self.position, self.late_slices)

    def read_through(self) -> list[dict[str, Any]]:
        """Returns column values for the store's stream partitions, as of the base."""
        label = {"label_start": self.label.start, "label_end": self.label.end}
        return [asdict(part) | label | {"watermark": self.commit_time} for part in self.partitions]

    def to_bytes(self) -> bytes:
        """Returns JSON in a durable format: every later version of this code has to read it."""
        values = msgspec.to_builtins(self, builtin_types=(datetime,))
        label, tables = list(values["label"].values()), list(map(table_array, self.tables))
        return json_bytes({"format": FORMAT, **values, "label": label, "tables": tables})

    @classmethod
    def from_bytes(cls, content: bytes) -> "ChainBase":
        """Raises RegistryError for a damaged file, and for a format that this code does not know."""
        with damage_named("the base of a chain of cut files"):
            document = json.loads(content)
            if document.get("format") != FORMAT:
                raise RegistryError(
                    f"the base of a chain of cut files has the format {document.get('format')}",
                    expected=f"format {FORMAT}",
                    remedy="install the version of cdc-pipeline that wrote it, or a newer one",
                )
            tables = tuple(map(identity_of, document["tables"]))
            values = {**document, "label": label_values(document["label"]), "tables": ()}
            return replace(msgspec.convert(values, cls), tables=tables)


def chain_base(
    boundary: Boundary,
    decided: CutFile,
    identities: Mapping[UUID, TableIdentity],
    rows: Mapping[str, list[dict[str, Any]]],
    partitions: tuple[ReadThrough, ...],
) -> ChainBase:
    """Returns the base after `boundary`, whose cut file is `decided`. `identities`: all tables, by uuid.

    `rows`: as of now, from `BaseRows.read`. `partitions`: where each stream partition stands at the boundary. A table
    without a row there is in the base only if the cut file names it: it was removed since (`DecidedChain.removed`).

    Raises RegistryError when the cut file describes another cut.
    """
    cut = decided.content
    if not isinstance(cut, Cut) or cut.position != boundary.position:
        raise RegistryError(
            f"the cut file before the chain position {boundary.chain_position} describes another cut",
            expected=f"the cut at {boundary.position}",
            remedy=REMEDY,
        )
    read = {table.table_uuid: table for table in decided.tables}
    listed = {row["table_uuid"] for row in rows.get("source_table", ())}
    known = {uuid: identity for uuid, identity in identities.items() if str(uuid) in listed} | read
    return ChainBase(
        stream=decided.stream,
        position=boundary.position,
        late_slices=boundary.late_slices,
        commit_time=boundary.commit_time,
        label=cut.label,
        partitions=partitions,
        tables=tuple(known.values()),
        rows={**rows, "source_table": [_as_of(cut.position, row, read) for row in rows.get("source_table", ())]},
    )


def _as_of(position: str, row: dict[str, Any], read: Collection[UUID]) -> dict[str, Any]:
    """Returns the row of a table as of the cut at `position`. `read`: the tables that this cut names.

    A later cut has moved `followed_at` of a table behind the cut. If the cut does not name the table, it was added
    later, and nothing of it had been read.
    """
    if (row["followed_at"] or "") <= position:
        return row
    return row | {"followed_at": position if UUID(row["table_uuid"]) in read else None}


def read_through(file: CutFile) -> tuple[ReadThrough, ...]:
    """Returns where the stream partitions stand that the cut of the file names; none for a late slice."""
    return tuple(
        ReadThrough(
            stream_partition=part.stream_partition, next_offset=part.end_offset, last_position=part.last_position
        )
        for part in _ranges(file)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Changes of a table that are never applied: those after `followed`, up to `start`.

    `followed` is None if the table was never read before. `is_too_late`: a cut read them, and some are below the
    tombstone horizon. Otherwise no cut read them.
    """

    followed: str | None
    start: str
    is_too_late: bool = False

    def behind(self, cutoff: str | None) -> str | None:
        """Returns why the table is stale, if a snapshot with this cutoff does not have the changes; else None.

        Position 0 is the cutoff of a table that is read from files: nothing was read up to there.
        """
        cutoff = None if cutoff == _NOTHING_READ else cutoff
        followed = max((position for position in (self.followed, cutoff) if position is not None), default=None)
        if followed is None or followed >= self.start:
            return None
        return late_reason(self.start) if self.is_too_late else gap_reason(followed, self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedChain:
    """A whole chain: its base, if older cut files are deleted, and every later cut file with its chain position.

    The files lack what only their registration needs.
    """

    base: ChainBase | None
    files: tuple[tuple[str, CutFile], ...]

    @classmethod
    def of(cls, base: ChainBase | None, files: Iterable[tuple[str, CutFile]]) -> "DecidedChain":
        """Reads the files one by one and keeps little of each: there are thousands, and each names every table."""
        known: dict[TableIdentity, TableIdentity] = {}
        return cls(base=base, files=tuple((chain_position, file.outline(known)) for chain_position, file in files))

    @property
    def streams(self) -> Iterator[Stream]:
        yield from () if self.base is None else (self.base.stream,)
        yield from (file.stream for _, file in self.files)

    @property
    def stream_partitions(self) -> set[int]:
        ranges = {part.stream_partition for _, file in self.files for part in _ranges(file)}
        return ranges | {part.stream_partition for part in (() if self.base is None else self.base.partitions)}

    @property
    def tables(self) -> Iterator[TableIdentity]:
        """Yields the tables from the oldest to the newest file. A table is yielded once for each file that names it."""
        yield from () if self.base is None else self.base.tables
        yield from (identity for _, file in self.files for identity in file.tables)

    @property
    def removed(self) -> set[UUID]:
        """The tables that the base names and that were removed before it was made: the store had no rows of them."""
        if self.base is None:
            return set()
        listed = {UUID(row["table_uuid"]) for row in self.base.rows["source_table"]}
        return {identity.table_uuid for identity in self.base.tables} - listed

    def newest_tables(self, since: Mapping[TableName, str]) -> dict[TableName, TableIdentity]:
        """Returns the newest identity of each table that is not among the removed ones.

        `since`: the chain positions before which another table had the name.
        """
        first, found = {name: order_of(place) for name, place in since.items()}, dict[TableName, TableIdentity]()
        removed = self.removed
        if self.base is not None:
            end = order_of(self.base.chain_position)
            ours = [each for each in self.base.tables if each.table_uuid not in removed]
            found = {each.name: each for each in ours if end > first[each.name]}
        for chain_position, file in self.files:
            begin = order_of(chain_position)
            ours = [each for each in file.tables if each.table_uuid not in removed]
            found |= {each.name: each for each in ours if begin >= first[each.name]}
        return found

    def gaps(self, rows: Iterable[SourceTable]) -> dict[UUID, Gap]:
        """Returns the last gap of each table that has one: a cut began behind the cut that read the table before.

        `rows`: the tables in the store as of the base.
        """
        return {identity.table_uuid: gap for identity, _, gap in self._reads(rows) if gap is not None}

    def halts(self, rows: Sequence[SourceTable]) -> dict[UUID, str | None]:
        """Returns where each stale table was halted: at the last cut that read it before; None if none had read it.

        If a table was stale several times, the last time counts: it begins behind an identity that is not stale, or
        that has another cutoff. A gap makes the table stale already in the cut that begins behind it.

        `rows`: as for `gaps`. They say where a table was halted that was stale when the base was made.
        """
        begin = "" if self.base is None else self.base.position
        found: dict[UUID, str | None] = {
            row.table_uuid: row.halted_at for row in rows if (row.halted_at or "~") <= begin
        }
        cutoffs = {} if self.base is None else {each.table_uuid: each.cutoff_offset for each in self.base.tables}
        for identity, before, gap in self._reads(rows):
            uuid, cutoff = identity.table_uuid, identity.cutoff_offset
            if identity.stale is None and (gap is None or gap.behind(cutoff) is None):
                found.pop(uuid, None)
            elif uuid not in found or cutoffs.get(uuid) != cutoff:
                found[uuid] = before
            cutoffs[uuid] = cutoff
        return found

    def _reads(self, rows: Iterable[SourceTable]) -> Iterator[tuple[TableIdentity, str | None, Gap | None]]:
        """Yields each table of each file, the last cut that had read it before, and the gap in front of this one."""
        reached = {row.table_uuid: row.followed_at for row in rows}
        for _, file in self.files:
            for index, identity in enumerate(file.tables):
                before, gap = reached.get(identity.table_uuid), None
                if isinstance(file.content, Cut):
                    reached[identity.table_uuid] = file.content.position
                    if any(new.table_id == index and new.is_below(identity.horizon) for new in file.content.slices):
                        gap = Gap(followed=before, start=file.content.position, is_too_late=True)
                    elif before is None or before < file.content.start:
                        gap = Gap(followed=before, start=file.content.start)
                yield identity, before, gap


def _ranges(file: CutFile) -> tuple[PartitionRange, ...]:
    return file.content.partitions if isinstance(file.content, Cut) else ()


def order_of(chain_position: str) -> tuple[str, int]:
    """Returns a sort key: chain positions in the order of their stream. The beginning, without a position, is first."""
    position, _, late = chain_position.rpartition("-")
    return (position, int(late)) if position else ("", 0)


def check_kept(stream: str, chain_position: str, base: str) -> None:
    """Raises RegistryError for a chain position before the base at `base`: the cut files there are deleted."""
    if order_of(chain_position) < order_of(base):
        raise RegistryError(
            f"the metadata store knows the stream {stream} up to {chain_position}, and its cut files begin at {base}",
            expected="a metadata store that is no older than the cut files that are kept",
            remedy=REMEDY,
        )


def check_tables(stream: str, first: CutFile, known: Collection[UUID]) -> None:
    """Raises RegistryError for a store without the tables: cut files do not describe the lake, so rebuild it."""
    if any(identity.table_uuid not in known for identity in first.tables):
        raise RegistryError(
            f"the metadata store knows nothing of the stream {stream}, and the bucket holds cut files of it",
            expected="a metadata store that has registered them",
            remedy=REMEDY,
        )
