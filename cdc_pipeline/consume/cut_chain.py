"""The chain of cut files of a stream: at each chain position, the first object that is put decides what follows.

A process puts the file of a cut or late slice, and registers it afterwards. If another file is already at the chain
position, the process registers that file first. So two consumers cannot fork a stream, even when one of them uses an
older metadata store. A metadata store that was restored from a backup catches up from the files.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from cdc_pipeline.areas import base_key, base_prefix, chain_position_of_key, cut_key
from cdc_pipeline.consume.chain_base import (
    REMEDY,
    ChainBase,
    ReadThrough,
    chain_base,
    check_kept,
    check_tables,
    order_of,
    read_through,
)
from cdc_pipeline.consume.chain_position import (
    chain_position_after,
    moved_to_chain_end,
    position_of,
    share_no_partition,
)
from cdc_pipeline.consume.cut_file import CutFile, TableIdentity, check_not_too_late, cut_file
from cdc_pipeline.errors import ObjectExists, ObjectMissing, RegistryError, StreamMoved
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.metadata_store.ledger.cut import BEGINNING, Cut, LateSlice
from cdc_pipeline.metadata_store.ledger.quarantine import no_boundary
from cdc_pipeline.metadata_store.ledger.records import Assignment, Boundary, SourceTable, Stream
from cdc_pipeline.metadata_store.ledger.tables import NewTable
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import PARTITION_ENDED, TableSchema
from cdc_pipeline.steps import OnStep, step

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class CutChain:
    """The chain of the stream `name`. Chain positions are `beginning`, or `<position>-<number of late slices>`."""

    name: str
    objects: ObjectStore
    store: MetadataStore
    on_step: OnStep

    def register(
        self, cut: Cut, assignment: Assignment, chain_position: str, schemas: Mapping[str, TableSchema]
    ) -> Boundary:
        """Puts the cut file and registers the cut; both are durable on return. `schemas`: of the slices, by id.

        The cut file is put at `chain_position`, or after late slices whose files are already there. Raises StreamMoved
        when another cut's file is already there; that cut is then registered. If it is a cut of other stream partitions
        only, this cut follows it instead. Also raises StreamMoved, without effect, for an event below the tombstone
        horizon of its table. An empty cut at the position of the last cut gets no file: it only marks that cut as
        requested.
        """
        cut = moved_to_chain_end(cut, chain_position)
        if cut.is_empty and cut.position == position_of(chain_position):
            return self.store.registration.register(cut, assignment)
        stream, identities = self._stream(), self._identities()
        check_not_too_late(cut, identities)
        while (found := self._decide(chain_position, cut_file(stream, identities, schemas, cut))) is not None:
            self.store.streams.check_owner(assignment)
            chain_position = self.adopt(found, chain_position)
            if isinstance(found.content, Cut) and share_no_partition(found.content, cut):
                cut = moved_to_chain_end(cut, chain_position)
            elif isinstance(found.content, Cut):
                raise StreamMoved(
                    f"another cut of {self.name} was decided where this one begins",
                    expected="nobody else who reads the stream",
                    remedy=f"read on at {chain_position}: the other one is registered now",
                )
        return self.store.registration.register(cut, assignment)

    def register_late(
        self, late: LateSlice, schema: TableSchema, lease: Lease, before_put: Callable[[], None]
    ) -> int | None:
        """Puts the file of a late slice and registers the slice; returns its number. Idempotent by the slice's id.

        The lease and the events are checked after the end of the chain was read, and `before_put` is called at last.
        Returns None if another process puts a cut file there meanwhile, and registers that one: call it again then.

        Raises RegistryError while the stream has no boundary, and for an event that is replayed or dropped by now;
        StaleEpoch when another process has the lease.
        """
        new = cut_file(self._stream(), self._identities(), {late.slice.schema_id: schema}, late)
        chain_position = self.store.streams.chain_position(self.name)
        if (known := self.store.quarantine.number_or_open(late, lease)) is not None:
            return known
        self._refuse_forgotten(chain_position)
        if chain_position == BEGINNING:
            raise no_boundary(self.name)
        before_put()
        if (found := self._decide(chain_position, new)) is not None:
            self.adopt(found, chain_position)
            return None
        return self.store.quarantine.replay(late, chain_position, lease)

    def catch_up(self) -> int:
        """Registers every cut and late slice of the chain that the metadata store lacks; returns their number.

        Raises RegistryError when the metadata store has no cut of the stream and lacks one of its tables, or when cut
        files that it lacks are deleted.
        """
        chain_position, adopted = self.store.streams.chain_position(self.name), 0
        self._refuse_forgotten(chain_position)
        while (found := self.read(chain_position)) is not None:
            if chain_position == BEGINNING:
                check_tables(self.name, found, {row.table_uuid for row in self.store.tables.tables()})
            chain_position = self.adopt(found, chain_position)
            adopted += 1
        if adopted:
            words = {"stream": self.name, "registered": adopted, "chain_position": chain_position}
            log.warning("the metadata store was behind the bucket", **words)
        return adopted

    def read(self, chain_position: str) -> CutFile | None:
        """Returns the cut file at the chain position; None if there is none."""
        try:
            with step(self.on_step, "cut_file.get"):
                content = self.objects.get(cut_key(self.name, chain_position))
        except ObjectMissing:
            return None
        return CutFile.from_bytes(content)

    def base_position(self) -> str | None:
        """Returns the chain position of the newest base; None when the chain begins at the beginning of the stream."""
        with step(self.on_step, "chain_base.list"):
            found = [chain_position_of_key(found.key) for found in self.objects.list_prefix(base_prefix(self.name))]
        return max(found, key=order_of, default=None)

    def base(self) -> ChainBase | None:
        """Returns the newest base, which replaces the cut files that are deleted; None if there is none."""
        chain_position = self.base_position()
        if chain_position is None:
            return None
        with step(self.on_step, "chain_base.get"):
            return ChainBase.from_bytes(self.objects.get(base_key(self.name, chain_position)))

    def base_behind(self, boundary: Boundary, rows: Mapping[str, list[dict[str, Any]]]) -> ChainBase:
        """Returns a base after `boundary`, for `put_base`. `rows`: the rows of earlier cuts that are kept.

        Raises RegistryError when the cut file of the boundary is gone.
        """
        decided = self.read(self.store.retention.decided_at(boundary))
        if decided is None:
            raise RegistryError(
                f"the cut file that decided the cut at {boundary.position} is gone",
                expected="every cut file after the base of the chain",
                remedy="bring the objects under cdc-event/ back, or run cdc rebuild: nothing was deleted",
            )
        identities = {identity.table_uuid: identity for identity in self._identities().values()}
        return chain_base(boundary, decided, identities, rows, self._read_through(boundary, decided))

    def _read_through(self, boundary: Boundary, decided: CutFile) -> tuple[ReadThrough, ...]:
        """Returns where each stream partition stands at the boundary.

        The boundary's own cut says so, and the last base for those that had ended before. If that is not all, because
        consumers share the stream or one has ended since, the cuts from the last base on are read. `cdc clean` deletes
        these cuts next.
        """
        found = {part.stream_partition: part for part in read_through(decided)}
        base = self.base()
        known = {} if base is None else {part.stream_partition: part for part in base.partitions}
        found = {number: part for number, part in known.items() if PARTITION_ENDED in part.last_position} | found
        if not found.keys() >= set(self.store.streams.stream_partitions(self.name)):
            for _, file in self.files(BEGINNING if base is None else base.chain_position):
                known.update((part.stream_partition, part) for part in read_through(file))
                if isinstance(file.content, Cut) and file.content.position >= boundary.position:
                    break
            found = known | found
        return tuple(part for _, part in sorted(found.items()))

    def put_base(self, base: ChainBase) -> None:
        """Puts the base; durable on return. Afterwards, the cut files before it can be deleted.

        A base that is already there is kept, because it describes the same cuts.
        """
        with step(self.on_step, "chain_base.put"), suppress(ObjectExists):
            self.objects.put_if_absent(base_key(self.name, base.chain_position), base.to_bytes())

    def files(self, begin: str = BEGINNING) -> Iterator[tuple[str, CutFile]]:
        """Yields every cut file from the chain position `begin` on, with its chain position."""
        chain_position = begin
        while (found := self.read(chain_position)) is not None:
            yield chain_position, found
            chain_position = chain_position_after(chain_position, found.content)

    def _decide(self, chain_position: str, new: CutFile) -> CutFile | None:
        """Puts `new` at the chain position. Returns None on success, or the file that is already there."""
        try:
            with step(self.on_step, "cut_file.put"):
                self.objects.put_if_absent(cut_key(self.name, chain_position), new.to_bytes())
        except ObjectExists:
            found = self.read(chain_position)
            if found is None:
                raise
            return found
        return None

    def adopt(self, found: CutFile, chain_position: str) -> str:
        """Registers the cut or late slice of the cut file at `chain_position`; returns the next one. Idempotent."""
        known = {row.name: row for row in self.store.tables.tables()}
        rows = [self._row(identity, known.get(identity.name)) for identity in found.tables]
        content = found.content_for([row.table_id for row in rows])
        if isinstance(content, LateSlice):
            (row,) = rows
            at = position_of(chain_position)
            schema = found.schemas[content.slice.schema_id]
            self.store.tables.record_schema(row.table_id, schema, first_offset=at, is_newest=row.schema_id is None)
            self.store.quarantine.replay(content, chain_position, None)
            return chain_position_after(chain_position, found.content)
        for identity, row in zip(found.tables, rows, strict=True):
            if identity.horizon > row.horizon:
                self.store.tombstone_horizons.follow(row.table_id, identity.horizon)
        self._follow(found, content, rows)
        # a store that was restored may be older than a stream partition
        self.store.streams.add_partitions(self.name, [part.stream_partition for part in content.partitions])
        starts = {part.stream_partition: part.start_offset for part in content.partitions}
        newest = {row.table_id: row.schema_id for row in rows}
        for new in content.slices:
            if new.schema_id != newest[new.table_id]:
                schema, start = found.schemas[new.schema_id], starts[new.stream_partition]
                self.store.tables.record_schema(new.table_id, schema, first_offset=start, is_newest=True)
        return self.store.registration.register(content, None).chain_position

    def _follow(self, found: CutFile, cut: Cut, rows: Sequence[SourceTable]) -> None:
        """Updates the stream and its tables to what the cut file says, where the store is older than the file.

        Does nothing for a cut before the registered offsets, because the stream was started again after such a cut.
        """
        registered = self.store.streams.next_offset(self.name)
        if registered is not None and min(part.start_offset for part in cut.partitions) < registered:
            return
        if found.stream != self._stream():
            self.store.streams.follow(found.stream)
        for identity, row in zip(found.tables, rows, strict=True):
            if identity.is_older_than(row):
                continue
            becomes_stale = identity.stale is not None and row.state is not TableState.STALE
            source = (identity.source_oid, identity.published_as)
            if becomes_stale or source != (row.source_oid, row.published_as):
                self.store.stale_tables.follow(
                    row.table_id,
                    source_oid=identity.source_oid,
                    published_as=identity.published_as,
                    stale=identity.stale if becomes_stale else None,
                )

    def _row(self, identity: TableIdentity, row: SourceTable | None) -> SourceTable:
        """Returns the table's row. Registers a table that the store lacks, as of the cut and without settings."""
        if row is None:
            row = self.store.tables.register_table(
                NewTable(
                    name=identity.name,
                    stream=self.name,
                    source_oid=identity.source_oid,
                    settings={},
                    table_uuid=identity.table_uuid,
                    published_as=identity.published_as or "",
                )
            )
        if row.table_uuid != identity.table_uuid:
            raise RegistryError(
                f"{identity.name} is {row.table_uuid} in the metadata store, {identity.table_uuid} in the cut files",
                expected="one and the same table",
                remedy=REMEDY,
            )
        return row

    def _refuse_forgotten(self, chain_position: str) -> None:
        """Raises RegistryError for a chain position before the base, or if the lake has no cut file of the stream."""
        base = self.base_position()
        if base is None and chain_position != BEGINNING and self.read(BEGINNING) is None:
            raise RegistryError(
                f"{self.objects.url} has no cut file of the stream {self.name}, of which cuts are registered",
                expected="the lake that the stream was set up with",
                remedy="mount it, or correct lake in pipeline.yml; if it is lost, run cdc remove --pipeline first",
            )
        if base is not None:
            check_kept(self.name, chain_position, base)

    def _stream(self) -> Stream:
        return self.store.streams.stream(self.name)

    def _identities(self) -> dict[int, TableIdentity]:
        return {row.table_id: TableIdentity.of(row) for row in self.store.tables.tables()}
