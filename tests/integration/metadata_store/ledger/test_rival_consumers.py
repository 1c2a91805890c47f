"""Two consumers of one stream, each with its own connections: what is registered is one history, whoever wins."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import pytest

from cdc_pipeline.errors import RegistryError, SliceFork, StaleEpoch
from cdc_pipeline.metadata_store.database import Database, create_store_engine
from cdc_pipeline.metadata_store.ledger.records import Assignment, RegisteredSlice
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.record import decode_position, encode_position
from tests.support.metadata_store import PARTITIONS, STREAM, Shop, opened_shop
from tests.support.streams import run_sql

END = 60
"""Where both stop."""


@dataclass(frozen=True, kw_only=True)
class Rival:
    """Registers cuts of its own lengths and contents, and takes the stream back whenever it was taken from it."""

    name: str
    shop: Shop
    store: MetadataStore
    chance: Random

    def run(self) -> int:
        """How many cuts it registered."""
        registered, assignment = 0, self.take()
        while (start := decode_position(assignment.next_offset[0])) < END:
            if self.chance.random() < 0.1:
                assignment = self.take()
                continue
            try:
                end = min(END, start + self.chance.randint(1, 3))
                self.register(assignment, start, end)
                if self.chance.random() < 0.3:
                    self.register(assignment, start, end)
                registered += 1
                assignment = replace(assignment, next_offset=dict.fromkeys(PARTITIONS, encode_position(end)))
            except StaleEpoch:
                assignment = self.take()
        return registered

    def take(self) -> Assignment:
        return self.store.streams.take_stream(STREAM.name, owner=self.name, first_offset=encode_position(0))

    def register(self, assignment: Assignment, start: int, end: int) -> None:
        rows = {(self.shop.orders.table_id, 0): 1, (self.shop.orders.table_id, 1): end % 2}
        self.store.registration.register(self.shop.cut(start, end, rows, salt=self.name), assignment)


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    with opened_shop(database) as shop:
        yield shop


def slices_of(shop: Shop) -> tuple[RegisteredSlice, ...]:
    return shop.store.slices.slices(shop.orders.table_id, 1, 10_000)


@pytest.mark.parametrize("seed", range(3))
def test_two_consumers_at_once_register_one_history_without_gap_or_overlap(shop: Shop, seed: int) -> None:
    engines = [create_store_engine(shop.url) for _ in range(2)]
    rivals = [
        Rival(
            name=name,
            shop=shop,
            store=MetadataStore(Database(engine=engine), STREAM.name),
            chance=Random(f"{seed} {name}"),
        )
        for name, engine in zip(("one", "other"), engines, strict=True)
    ]
    with ThreadPoolExecutor(2) as threads:
        registered = list(threads.map(Rival.run, rivals))
    for engine in engines:
        engine.dispose()
    slices = slices_of(shop)
    boundaries = shop.store.inspection.run("boundaries", {"limit": 10_000})
    assert sum(registered) <= len(boundaries)
    assert [row.number for row in slices] == list(range(1, len(slices) + 1))
    for partition in PARTITIONS:
        ranges = [(row.start_offset, row.end_offset) for row in slices if row.stream_partition == partition]
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(ranges))
    whole = [(row.start_offset, row.end_offset) for row in slices if row.stream_partition == 0]
    assert (whole[0][0], whole[-1][1]) == (encode_position(0), encode_position(END))
    assert all(earlier[1] == later[0] for earlier, later in pairwise(whole))
    watermarks = [row["commit_time"] for row in sorted(boundaries, key=lambda row: row["boundary_id"])]
    assert watermarks == sorted(watermarks)
    assert shop.store.tables.table(shop.orders.name).next_slice_number == len(slices) + 1


def test_an_owner_of_a_store_that_counts_epochs_anew_registers_nothing(shop: Shop) -> None:
    before = shop.cut(0, 1, {(shop.orders.table_id, 0): 1})
    run_sql(shop.url, "UPDATE cdc.stream_partition SET assignment_owner = 'after'")
    with pytest.raises(StaleEpoch, match="belongs to after with epoch 1; expected epoch 1 of consumer"):
        shop.register(before)
    assert slices_of(shop) == ()


def test_the_schema_of_a_table_is_that_of_its_newest_registered_slice_and_not_of_one_that_was_refused(
    shop: Shop,
) -> None:
    table_id, first = shop.orders.table_id, shop.schema_id
    document = shop.store.tables.schema(table_id, first)
    wider = replace(document, columns=(*document.columns, replace(document.columns[1], name="more")))
    other = shop.store.tables.record_schema(table_id, wider, first_offset=encode_position(1), is_newest=False)
    cut = shop.cut(0, 1, {(table_id, 0): 1})
    wide = replace(cut, slices=tuple(replace(new, schema_id=other) for new in cut.slices))
    with pytest.raises(StaleEpoch):
        shop.store.registration.register(wide, replace(shop.assignment, epoch=7))
    assert shop.store.tables.table(shop.orders.name).schema_id == first
    shop.register(wide)
    assert shop.store.tables.table(shop.orders.name).schema_id == other


def test_a_fork_names_itself_and_leaves_the_registered_file(shop: Shop) -> None:
    shop.register(shop.cut(0, 1, {(shop.orders.table_id, 0): 1}))
    before = slices_of(shop)
    with pytest.raises(SliceFork, match="is registered with other content; expected the same bytes"):
        shop.register(shop.cut(0, 1, {(shop.orders.table_id, 0): 1}, salt="other"))
    with pytest.raises(RegistryError):
        shop.register(shop.cut(0, 2, {(shop.orders.table_id, 0): 1}))
    assert slices_of(shop) == before
