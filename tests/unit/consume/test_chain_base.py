"""The base of a chain of cut files is read as it was written, and of the files behind it little is kept in memory."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from cdc_pipeline.consume.chain_base import ChainBase, DecidedChain, ReadThrough, chain_base, order_of
from cdc_pipeline.consume.cut_file import CutFile, TableIdentity
from cdc_pipeline.errors import RegistryError
from cdc_pipeline.metadata_store.ledger.cut import BEGINNING, Cut, PartitionRange, Slice
from cdc_pipeline.metadata_store.ledger.records import Boundary, Stream
from cdc_pipeline.record import TableName
from cdc_pipeline.time_slice import Label

MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)
BASE = ChainBase(
    stream=Stream(name="shop", source_system_identifier="7", source_timeline=1, slot="cdc"),
    position="00000000016b3748",
    late_slices=2,
    commit_time=MOMENT,
    label=Label(start=MOMENT, end=MOMENT.replace(minute=1)),
    partitions=(ReadThrough(stream_partition=0, next_offset="00000000016b3748", last_position={"a": "1"}),),
    tables=(TableIdentity(table_uuid=UUID(int=1), name=TableName.parse("a.b.c"), source_oid=9, stale="dropped"),),
    rows={"slice": [{"table_id": 1, "number": 7}], "quarantine": []},
)


def test_a_base_is_read_as_it_was_written() -> None:
    assert ChainBase.from_bytes(BASE.to_bytes()) == BASE
    assert BASE.chain_position == "00000000016b3748-2"


def test_a_base_of_another_format_is_refused_with_both() -> None:
    with pytest.raises(RegistryError, match=r"has the format 9; expected format 1"):
        ChainBase.from_bytes(BASE.to_bytes().replace(b'"format":1', b'"format":9'))


def test_places_are_in_the_order_of_their_stream_also_behind_ten_late_slices() -> None:
    places = [BEGINNING, "000000000000000a-0", "000000000000000a-9", "000000000000000a-10", "00000000000000b0-0"]
    assert sorted({*places}, key=order_of) == places


def test_a_chain_takes_little_memory_for_each_of_its_files() -> None:
    content = cut_of_many_tables(300)
    tracemalloc.start()
    files = DecidedChain.of(None, read_often(content)).files
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    read = CutFile.from_bytes(content)
    assert [file.tables for _, file in files] == [read.tables] * 100
    assert size / 100 < len(content) / 10


@pytest.mark.parametrize(("cutoff", "is_behind"), [("00000000016b3749", True), ("00000000016b3750", False)])
def test_a_table_whose_events_came_below_its_horizon_lacks_them_until_a_later_snapshot(
    *, cutoff: str, is_behind: bool
) -> None:
    """The other table of the same cut lacks nothing."""
    file = CutFile.from_bytes(cut_of_many_tables(2))
    assert isinstance(file.content, Cut)
    late, other = (replace(table, horizon=horizon) for table, horizon in zip(file.tables, "42", strict=True))
    slices = tuple(replace(new, oldest_version="3") for new in file.content.slices)
    passed = replace(file, tables=(late, other), content=replace(file.content, slices=slices))
    gaps = DecidedChain.of(None, [(BEGINNING, passed)]).gaps(())
    assert (gaps[late.table_uuid].behind(cutoff) is not None) == is_behind
    assert gaps[other.table_uuid].behind(None) is None


def test_only_a_table_that_the_cut_names_and_the_store_lacks_counts_as_removed() -> None:
    """Not one that was registered after the store's rows were read and before the identities were."""
    decided = CutFile.from_bytes(cut_of_many_tables(2))
    kept, removed = decided.tables
    new = replace(kept, table_uuid=UUID(int=7), name=TableName.parse("a.b.new"))
    assert isinstance(decided.content, Cut)
    boundary = Boundary(
        boundary_id=1,
        stream="shop",
        position=decided.content.position,
        commit_time=MOMENT,
        label_start=MOMENT,
        label_end=MOMENT,
        requested=False,
        registered_at=MOMENT,
        late_slices=0,
    )
    rows = {"source_table": [{"table_uuid": str(kept.table_uuid), "followed_at": None}]}
    base = chain_base(boundary, decided, {kept.table_uuid: kept, new.table_uuid: new}, rows, ())
    chain = DecidedChain.of(base, [(base.chain_position, decided)])
    assert chain.removed == {removed.table_uuid}
    assert list(chain.newest_tables(dict.fromkeys((kept.name, removed.name), BEGINNING)).values()) == [kept]


def read_often(content: bytes) -> Iterator[tuple[str, CutFile]]:
    for number in range(100):
        yield f"{number:016x}-0", CutFile.from_bytes(content)


def cut_of_many_tables(count: int) -> bytes:
    """Each table has a slice."""
    start, end = "00000000016b3748", "00000000016b3750"
    name = {"database": "shop", "schema": "public"}
    tables = tuple(
        TableIdentity(table_uuid=UUID(int=number), name=TableName(**name, table=f"t{number}"), source_oid=number)
        for number in range(count)
    )
    first = Slice(
        table_id=0, stream_partition=0, path="cdc-event/a", sha256="ab" * 32, size_bytes=9, rows=1, schema_id="a"
    )
    slices = tuple(replace(first, table_id=number) for number in range(count))
    cut = Cut(
        stream="shop",
        start=start,
        position=end,
        commit_time=MOMENT,
        label=BASE.label,
        partitions=(PartitionRange(stream_partition=0, start_offset=start, end_offset=end),),
        tables=tuple(range(count)),
        slices=slices,
    )
    return CutFile(stream=BASE.stream, tables=tables, schemas={}, content=cut).to_bytes()
