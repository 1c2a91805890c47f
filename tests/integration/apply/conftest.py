"""A table with a published snapshot, and slices for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_pipeline.lake.protocol import LakePublication
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.steps import no_step
from tests.support.lake import NOW
from tests.support.memory_lake import MemoryLake
from tests.support.metadata_store import opened_shop
from tests.support.slice_work import Work


@pytest.fixture
def work(store_url: str, tmp_path: Path) -> Iterator[Work]:
    objects = LocalObjectStore(tmp_path)
    lake = MemoryLake(store=objects, clock=lambda: NOW, on_step=no_step)
    with opened_shop(store_url) as shop:
        work = Work(shop=shop, objects=objects, lake=lake)
        lake.create_table(work.table)
        lake.publish(work.table, LakePublication(snapshot_id="first", files=(), fence_number=0))
        lease = shop.acquire()
        shop.publish(lease, 0)
        shop.store.leases.release(lease)
        yield work
