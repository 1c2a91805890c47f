"""Registered slices of one table, for tests of the slice worker."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

from cdc_pipeline.apply.claim_work import ClaimLimits
from cdc_pipeline.apply.slice_to_lake import SliceWorker
from cdc_pipeline.apply.table_work import TableWork
from cdc_pipeline.areas import slice_key
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.metadata_store.ledger.cut import Slice
from cdc_pipeline.metadata_store.ledger.records import RegisteredSlice
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Operation, encode_version
from cdc_pipeline.steps import OnStep, no_step
from tests.support.lake import NOW, slice_bytes
from tests.support.memory_lake import MemoryLake
from tests.support.metadata_store import MINUTE, SCHEMA, Shop
from tests.support.reference.model import Event

EVERYTHING = ClaimLimits(slices=1_000, rows=1_000_000)


@dataclass(kw_only=True)
class Work:
    """Orders, published empty at position 0. Cut n is labelled by the minute that ends n minutes after MORNING."""

    shop: Shop
    objects: LocalObjectStore
    lake: MemoryLake
    position: int = field(default=0)

    @property
    def table(self) -> LakeTable:
        row = self.shop.orders
        return LakeTable(name=row.name, table_uuid=str(row.table_uuid), schema=SCHEMA)

    def worker(self, limits: ClaimLimits = EVERYTHING, on_step: OnStep = no_step) -> SliceWorker:
        work = TableWork(
            owner=str(uuid4()),
            lease_length=MINUTE,
            store=self.shop.store,
            objects=self.objects,
            lake=MemoryLake(store=self.objects, clock=lambda: NOW, on_step=on_step),
            lake_table=lambda _name: self.table,
            on_step=on_step,
        )
        return SliceWorker(work=work, limits=limits, new_id=uuid4)

    def cut(self, *rows: int, requested: bool = False) -> None:
        """One slice with so many rows per stream partition; 0: none."""
        self.position += 1
        table_id = self.shop.orders.table_id
        plain = self.shop.cut(
            self.position - 1, self.position, {(table_id, part): 0 for part in (0, 1)}, requested=requested
        )
        slices = [self.slice(part, count) for part, count in enumerate(rows) if count]
        self.shop.register(replace(plain, slices=tuple(slices)))

    def slice(self, partition: int, rows: int) -> Slice:
        events = [self.order(1000 * self.position + 100 * partition + number, number) for number in range(rows)]
        content = slice_bytes(SCHEMA, events)
        sha256 = hashlib.sha256(content).hexdigest()
        key = slice_key(self.table.name, partition, f"{self.position}-{sha256}.parquet")
        self.objects.put_if_absent(key, content)
        return Slice(
            table_id=self.shop.orders.table_id,
            stream_partition=partition,
            path=key,
            sha256=sha256,
            size_bytes=len(content),
            rows=rows,
            schema_id=self.shop.schema_id,
        )

    def order(self, id_: int, ordinal: int) -> Event:
        version = encode_version(self.position, ordinal + 1)
        return Event(operation=Operation.INSERT, version=version, id=(id_,), values={"note": "n"})

    def fence(self) -> int:
        fence = self.lake.read_fence(self.table)
        assert fence is not None
        return fence.number

    def claims(self) -> list[tuple[int, int]]:
        """Bounds of every commit of the lake that applied something, in order."""
        metadata = [commit.user_metadata for commit in self.lake.commits(self.table)]
        return [(found["first"], found["last"]) for found in metadata if "claim_id" in found]

    def slices(self) -> Sequence[RegisteredSlice]:
        return self.shop.store.slices.slices(self.shop.orders.table_id, 1, 1_000)
