"""The chain of cut files of a stream: at each place one object, put if absent, decides what follows there.

A cut or a late slice is decided by its file, and registered afterwards. Whoever finds the file of somebody else at
the place where it wanted to go on registers that one first. So two consumers cannot part a stream, not even when one
of them works on an older metadata store; and a store that was restored catches up by what the files say.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from cdc_pipeline.areas import base_key, base_prefix, cut_key, place_of_key
from cdc_pipeline.consume.chain_base import ChainBase, chain_base, order_of
from cdc_pipeline.consume.cut_file import CutFile, TableIdentity, cut_file
from cdc_pipeline.errors import ObjectExists, ObjectMissing, RegistryError, StreamMoved
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.metadata_store.ledger.cut import BEGINNING, Cut, LateSlice, Slice, chain_position_behind
from cdc_pipeline.metadata_store.ledger.quarantine import no_boundary
from cdc_pipeline.metadata_store.ledger.records import Boundary, SourceTable, Stream
from cdc_pipeline.metadata_store.ledger.tables import NewTable
from cdc_pipeline.metadata_store.models.states import TableState
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableSchema
from cdc_pipeline.steps import OnStep, step

log = structlog.get_logger()

REMEDY = "run cdc rebuild: it makes the metadata store anew from bucket and lake"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutChain:
    name: str
    objects: ObjectStore
    store: MetadataStore
    on_step: OnStep

    def register(self, cut: Cut, place: str, schemas: Mapping[str, TableSchema]) -> Boundary:
        """The cut is decided and registered on return, at `place` or behind late slices that came there first.

        Raises StreamMoved when another cut was decided at the place: that one is registered then.
        """
        if cut.is_empty and cut.position == position_of(place):
            return self.store.registration.register(cut)
        new = cut_file(self._stream(), self._identities(), schemas, cut)
        while (found := self._decide(place, new)) is not None:
            if cut.epoch is not None:
                self.store.streams.check_owner(self.name, cut.owner, cut.epoch)
            place = self.adopt(found, place)
            if isinstance(found.content, Cut):
                raise StreamMoved(
                    f"another cut of {self.name} was decided where this one begins",
                    expected="nobody else who reads the stream",
                    remedy=f"read on at {place}: the other one is registered now",
                )
        return self.store.registration.register(cut)

    def register_late(self, late: LateSlice, schemas: Mapping[str, TableSchema], *, lease: Lease | None = None) -> int:
        """Its number. Idempotent by the slice's id. Raises RegistryError while the stream has no boundary."""
        known = self.store.quarantine.number_of(late)
        if known is not None:
            return known
        new = cut_file(self._stream(), self._identities(), schemas, late)
        place = self.store.streams.place(self.name)
        self._refuse_forgotten(place)
        if place == BEGINNING:
            raise no_boundary(self.name)
        while (found := self._decide(place, new)) is not None:
            place = self.adopt(found, place)
        return self.store.quarantine.replay(late, place, lease=lease)

    def catch_up(self) -> int:
        """Registers every cut and late slice that is decided behind what the registry knows; says how many.

        Raises RegistryError for a metadata store that knows nothing of the stream, or so little that the cut files
        which it lacks are deleted.
        """
        place, adopted = self.store.streams.place(self.name), 0
        self._refuse_forgotten(place)
        while (found := self.read(place)) is not None:
            if place == BEGINNING:
                self._check_known(found)
            place = self.adopt(found, place)
            adopted += 1
        if adopted:
            log.warning("the metadata store was behind the bucket", stream=self.name, registered=adopted, place=place)
        return adopted

    def read(self, place: str) -> CutFile | None:
        """What was decided at the place."""
        try:
            with step(self.on_step, "cut_file.get"):
                content = self.objects.get(cut_key(self.name, place))
        except ObjectMissing:
            return None
        return CutFile.from_bytes(content)

    def base_place(self) -> str | None:
        """Where the chain begins; None: at the beginning of the stream."""
        with step(self.on_step, "chain_base.list"):
            places = [place_of_key(found.key) for found in self.objects.list_prefix(base_prefix(self.name))]
        return max(places, key=order_of, default=None)

    def base(self) -> ChainBase | None:
        """What is to be known of the cuts before the first file that is left."""
        place = self.base_place()
        if place is None:
            return None
        with step(self.on_step, "chain_base.get"):
            return ChainBase.from_bytes(self.objects.get(base_key(self.name, place)))

    def base_behind(self, boundary: Boundary, rows: Mapping[str, list[dict[str, Any]]]) -> ChainBase:
        """The chain is whole by itself behind `boundary`, once this is put. `rows`: those of cuts before that stay."""
        decided = self.read(self.store.retention.decided_at(boundary))
        if decided is None:
            raise RegistryError(
                f"the cut file that decided the cut at {boundary.position} is gone",
                expected="every cut file behind the base of the chain",
                remedy="bring the objects under cdc-event/ back, or run cdc rebuild: nothing was deleted",
            )
        identities = {identity.table_uuid: identity for identity in self._identities().values()}
        return chain_base(boundary, decided, identities, rows)

    def put_base(self, base: ChainBase) -> None:
        """Durable on return; before it nothing is needed. Whoever put one for this place before told the same cuts."""
        with step(self.on_step, "chain_base.put"), suppress(ObjectExists):
            self.objects.put_if_absent(base_key(self.name, base.place), base.to_bytes())

    def files(self, begin: str = BEGINNING) -> Iterator[tuple[str, CutFile]]:
        """All from a place on, each with its place."""
        place = begin
        while (found := self.read(place)) is not None:
            yield place, found
            place = place_after(place, found.content)

    def _decide(self, place: str, new: CutFile) -> CutFile | None:
        """The file that was there before; None when `new` is what follows at the place."""
        try:
            with step(self.on_step, "cut_file.put"):
                self.objects.put_if_absent(cut_key(self.name, place), new.to_bytes())
        except ObjectExists:
            found = self.read(place)
            if found is None:
                raise
            return found
        return None

    def adopt(self, found: CutFile, place: str) -> str:
        """Registered on return; the place behind it. Idempotent."""
        known = {row.name: row for row in self.store.tables.tables()}
        rows = [self._row(identity, known.get(identity.name)) for identity in found.tables]
        content = found.content_for([row.table_id for row in rows])
        if isinstance(content, LateSlice):
            (row,) = rows
            at = position_of(place)
            self._record(content.slice, found.schemas, first_offset=at, is_newest=row.schema_id is None)
            self.store.quarantine.replay(content, place)
            return place_after(place, found.content)
        self._follow(found, content, rows)
        starts = {part.stream_partition: part.start_offset for part in content.partitions}
        newest = {row.table_id: row.schema_id for row in rows}
        for new in content.slices:
            if new.schema_id == newest[new.table_id]:
                continue
            self._record(new, found.schemas, first_offset=starts[new.stream_partition], is_newest=True)
        return self.store.registration.register(content).place

    def _follow(self, found: CutFile, cut: Cut, rows: Sequence[SourceTable]) -> None:
        """The source changed since the store was copied; not for a cut behind which the stream began again."""
        registered = self.store.streams.next_offset(self.name)
        if registered is not None and min(part.start_offset for part in cut.partitions) < registered:
            return
        if found.stream != self._stream():
            self.store.streams.follow(found.stream)
        for identity, row in zip(found.tables, rows, strict=True):
            was_stale = row.state is TableState.STALE
            becomes_stale = identity.stale is not None and not was_stale
            told = (identity.source_oid, identity.publication_mark)
            if becomes_stale or told != (row.source_oid, row.publication_mark):
                self.store.stale_tables.follow(
                    row.table_id,
                    source_oid=identity.source_oid,
                    publication_mark=identity.publication_mark,
                    stale=identity.stale if becomes_stale else None,
                )

    def _record(self, new: Slice, schemas: Mapping[str, TableSchema], *, first_offset: str, is_newest: bool) -> None:
        if new.schema_id is not None:
            schema = schemas[new.schema_id]
            self.store.tables.record_schema(new.table_id, schema, first_offset=first_offset, is_newest=is_newest)

    def _row(self, identity: TableIdentity, row: SourceTable | None) -> SourceTable:
        """A table that an older store does not know yet is registered as what it was; its settings come later."""
        if row is None:
            row = self.store.tables.register_table(
                NewTable(
                    name=identity.name,
                    stream=self.name,
                    source_oid=identity.source_oid,
                    settings={},
                    table_uuid=identity.table_uuid,
                    publication_mark=identity.publication_mark or "",
                )
            )
        if row.table_uuid != identity.table_uuid:
            raise RegistryError(
                f"{identity.name} is {row.table_uuid} in the metadata store, {identity.table_uuid} in the cut files",
                expected="one and the same table",
                remedy=REMEDY,
            )
        return row

    def _refuse_forgotten(self, place: str) -> None:
        """Nobody may decide anything at a place before the base: what was decided there is deleted."""
        base = self.base_place()
        if base is not None and order_of(place) < order_of(base):
            raise RegistryError(
                f"the metadata store knows the stream {self.name} up to {place}, and its cut files begin at {base}",
                expected="a metadata store that is no older than the cut files that are kept",
                remedy=REMEDY,
            )

    def _check_known(self, first: CutFile) -> None:
        """A store that was lost gets more than its cuts back: also what the lake knows."""
        known = {row.table_uuid for row in self.store.tables.tables()}
        lost = [identity for identity in first.tables if identity.table_uuid not in known]
        if lost:
            raise RegistryError(
                f"the metadata store knows nothing of the stream {self.name}, and the bucket holds cut files of it",
                expected="a metadata store that has registered them",
                remedy=REMEDY,
            )

    def _stream(self) -> Stream:
        return self.store.streams.stream(self.name)

    def _identities(self) -> dict[int, TableIdentity]:
        return {
            row.table_id: TableIdentity(
                table_uuid=row.table_uuid,
                name=row.name,
                source_oid=row.source_oid,
                publication_mark=row.publication_mark,
                stale=row.parked_reason or "" if row.state is TableState.STALE else None,
                cutoff_offset=row.cutoff_offset,
            )
            for row in self.store.tables.tables()
        }


def position_of(place: str) -> str:
    """Of the cut that the place lies behind; empty at the beginning of a stream."""
    return place.rpartition("-")[0]


def place_after(place: str, content: Cut | LateSlice) -> str:
    """The place behind `content`, which follows at `place`."""
    if isinstance(content, Cut):
        return chain_position_behind(content.position, 0)
    position, _, late = place.rpartition("-")
    return chain_position_behind(position, int(late) + 1)
