"""What a cut file says is what was cut: a metadata store is made anew from nothing else."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.consume.chain_base import ChainBase, ReadThrough
from cdc_pipeline.consume.cut_file import CutFile, TableIdentity, cut_file
from cdc_pipeline.errors import RegistryError
from cdc_pipeline.metadata_store.ledger.cut import Cut, LateSlice, PartitionRange, QuarantinedEvent, Slice
from cdc_pipeline.metadata_store.ledger.records import Stream
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.time_slice import EPOCH, Label

STREAM = Stream(name="shop", source_system_identifier="7000", source_timeline=1, slot="cdc_shop")
NAMES = st.text(min_size=1, max_size=5)
TEXTS = st.text(st.characters(), max_size=5)
ANY_TEXTS = st.text(st.characters(exclude_categories=()), max_size=5)
"""A line that is no UTF-8 waits in quarantine with lone surrogates for its bytes."""
OFFSETS = st.integers(0, 2**63 - 1).map(lambda number: f"{number:016x}")
COUNTS = st.integers(0, 10**12)
MOMENTS = st.integers(0, 10**16).map(lambda number: EPOCH + timedelta(microseconds=number))
TABLE_IDS = (3, 7, 12)
TABLES = st.builds(
    TableIdentity,
    table_uuid=st.uuids(),
    name=st.builds(TableName, database=NAMES, schema=NAMES, table=NAMES),
    source_oid=COUNTS,
    publication_mark=st.none() | TEXTS,
    stale=st.none() | TEXTS,
    cutoff_offset=st.none() | OFFSETS,
)
SCHEMAS = st.builds(
    TableSchema,
    columns=st.lists(st.builds(Column, name=NAMES, type=NAMES), max_size=3).map(tuple),
    key=st.lists(NAMES, max_size=2).map(tuple),
)
PLACES = st.tuples(st.sampled_from(TABLE_IDS), st.integers(0, 3))
GOLDEN = Path(__file__).parents[1] / "data" / "cut_files"
MORNING = datetime(2024, 1, 1, 8, tzinfo=UTC)
ORDERS = TableIdentity(
    table_uuid=UUID(int=1),
    name=TableName(database="shop", schema="public", table="orders"),
    source_oid=16400,
    publication_mark="all",
    cutoff_offset="0000000000000100",
)
CUSTOMERS = TableIdentity(
    table_uuid=UUID(int=2),
    name=TableName(database="shop", schema="public", table="kunden.ä"),
    source_oid=16401,
    stale="it was truncated",
)
GOLDEN_STREAM = replace(STREAM, source_timeline=2)
GOLDEN_SCHEMAS = {
    "a": TableSchema(
        columns=(
            Column(name="order_id", type="int8", number=1),
            Column(name="note", type="text", number=2, missing="neu"),
        ),
        key=("order_id",),
        generation=7,
    ),
    "b": TableSchema(columns=(Column(name="text", type="text"),), key=()),
}
GOLDEN_CUT = Cut(
    stream="shop",
    start="00000000000000ff",
    position="0000000000000120",
    commit_time=MORNING + timedelta(milliseconds=125),
    label=Label(start=MORNING, end=MORNING + timedelta(minutes=1)),
    partitions=(
        PartitionRange(
            stream_partition=0,
            start_offset="0000000000000100",
            end_offset="0000000000000120",
            last_position={"shop.public.orders": "0000000000000110"},
            begun={1: "orders-1.json", 12: "orders-2.json"},
        ),
        PartitionRange(stream_partition=1, start_offset="0000000000000100", end_offset="0000000000000100"),
    ),
    tables=(3, 7),
    slices=(
        Slice(
            table_id=3,
            stream_partition=0,
            path="cdc-event/orders-0.parquet",
            sha256="ab" * 32,
            size_bytes=1000,
            rows=5,
            schema_id="a",
            key_changes=1,
            partial_rows=2,
            truncates=1,
            key_ranges=((1, 3), (2**70, 2**70 + 1)),
            truncated_at="0000000000000110-00000002",
            oldest_version="0000000000000105-00000001",
        ),
        Slice(
            table_id=7,
            stream_partition=1,
            path="cdc-event/kunden-1.parquet",
            sha256="cd" * 32,
            size_bytes=10,
            rows=1,
            schema_id="b",
            key_ranges=(("ä", "ö"),),
        ),
    ),
    quarantined=(
        QuarantinedEvent(
            table_id=7,
            stream_partition=1,
            version="0000000000000111-00000001",
            reason="does not fit",
            column="text",
            payload={"text": "\x01ü\udcff", "none": None},
        ),
    ),
    requested=True,
)
GOLDEN_LATE = LateSlice(
    slice=Slice(
        table_id=7,
        stream_partition=0,
        path="cdc-event/late.parquet",
        sha256="ef" * 32,
        size_bytes=9,
        rows=1,
        schema_id="b",
        late=True,
    ),
    slice_id="late-id",
    events=((None, "0000000000000120-0"), ("20240101T080000Z-1", "3-ff-0")),
)
GOLDEN_BASE = ChainBase(
    stream=GOLDEN_STREAM,
    position="0000000000000120",
    late_slices=1,
    commit_time=GOLDEN_CUT.commit_time,
    label=GOLDEN_CUT.label,
    partitions=(
        ReadThrough(
            stream_partition=0,
            next_offset="0000000000000120",
            last_position={"shop.public.orders": "0000000000000110"},
        ),
    ),
    tables=(ORDERS, CUSTOMERS),
    rows={
        "source_table": [
            {
                "table_id": 3,
                "table_uuid": str(ORDERS.table_uuid),
                "next_slice_number": 4,
                "schema_id": "a",
                "followed_at": "0000000000000120",
            }
        ],
        "quarantine": [],
    },
)


@st.composite
def slices(draw: st.DrawFn, place: tuple[int, int], *, late: bool = False) -> Slice:
    table_id, stream_partition = place
    bounds = st.one_of(st.integers(), TEXTS)
    return Slice(
        table_id=table_id,
        stream_partition=stream_partition,
        path=draw(NAMES),
        sha256=draw(NAMES),
        size_bytes=draw(COUNTS),
        rows=draw(COUNTS),
        schema_id=draw(st.sampled_from("ab")),
        key_changes=draw(COUNTS),
        partial_rows=draw(COUNTS),
        truncates=draw(COUNTS),
        key_ranges=tuple(draw(st.lists(st.tuples(bounds, bounds), max_size=2))),
        truncated_at=draw(st.none() | TEXTS),
        late=late,
        oldest_version=draw(st.none() | TEXTS),
    )


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    start = draw(MOMENTS)
    places = sorted(draw(st.sets(PLACES, max_size=6)))
    events = st.builds(
        QuarantinedEvent,
        table_id=st.sampled_from(TABLE_IDS),
        stream_partition=st.integers(0, 3),
        version=TEXTS,
        reason=TEXTS,
        column=TEXTS,
        payload=st.dictionaries(ANY_TEXTS, st.none() | ANY_TEXTS, max_size=2),
    )
    parts = st.builds(
        PartitionRange,
        stream_partition=st.integers(0, 3),
        start_offset=OFFSETS,
        end_offset=OFFSETS,
        last_position=st.dictionaries(TEXTS, TEXTS, max_size=2),
        begun=st.dictionaries(st.integers(1, 9), TEXTS, max_size=2),
    )
    return Cut(
        stream=STREAM.name,
        start=draw(OFFSETS),
        position=draw(OFFSETS),
        commit_time=draw(MOMENTS),
        label=Label(start=start, end=start + timedelta(minutes=1)),
        partitions=tuple(draw(st.lists(parts, max_size=3))),
        tables=TABLE_IDS,
        slices=tuple(draw(slices(place)) for place in places),
        quarantined=tuple(draw(st.lists(events, max_size=2))),
        requested=draw(st.booleans()),
    )


@st.composite
def late_slices(draw: st.DrawFn) -> LateSlice:
    events = st.lists(st.tuples(st.none() | TEXTS, TEXTS), max_size=3)
    late = draw(slices(draw(PLACES), late=True))
    return LateSlice(slice=late, slice_id=draw(NAMES), events=tuple(draw(events)))


@given(
    cuts() | late_slices(),
    st.fixed_dictionaries(dict.fromkeys(TABLE_IDS, TABLES)),
    st.fixed_dictionaries(dict.fromkeys("ab", SCHEMAS)),
)
def test_what_is_read_back_is_what_was_written(
    content: Cut | LateSlice, tables: dict[int, TableIdentity], schemas: dict[str, TableSchema]
) -> None:
    file = cut_file(STREAM, tables, schemas, content)
    found = CutFile.from_bytes(file.to_bytes())
    assert found == file
    numbers = {identity.table_uuid: number for number, identity in tables.items()}
    if len(numbers) == len(TABLE_IDS):
        assert found.content_for([numbers[identity.table_uuid] for identity in found.tables]) == content


def test_a_file_of_another_format_is_refused() -> None:
    identity = TableIdentity(
        table_uuid=UUID(int=1), name=TableName(database="shop", schema="public", table="orders"), source_oid=1
    )
    late = LateSlice(slice=Slice(table_id=1, stream_partition=0), slice_id="1")
    content = cut_file(STREAM, {1: identity}, {}, late).to_bytes()
    with pytest.raises(RegistryError, match="has the format 3"):
        CutFile.from_bytes(content.replace(b'"format":2', b'"format":3'))


@given(cuts())
def test_a_file_of_the_first_format_names_a_slice_of_each_table_without_events(cut: Cut) -> None:
    identities = {
        number: TableIdentity(
            table_uuid=UUID(int=number),
            name=TableName(database="shop", schema="public", table=f"t{number}"),
            source_oid=number,
        )
        for number in TABLE_IDS
    }
    schemas = dict.fromkeys("ab", TableSchema(columns=(), key=()))
    document = json.loads(cut_file(STREAM, identities, schemas, cut).to_bytes())
    document["format"] = 1
    del document["cut"]["start"]
    document["cut"]["empty"] = [[0, 4], [1, 4]]
    found = CutFile.from_bytes(json.dumps(document).encode()).content_for(TABLE_IDS)
    empty = [Slice(table_id=number, stream_partition=4) for number in TABLE_IDS[:2]]
    expected = sorted([*cut.slices, *empty], key=lambda new: (new.table_id, new.stream_partition))
    assert found == replace(cut, start=None, slices=tuple(expected))


def golden(name: str) -> bytes:
    """Bytes that the code of that format wrote; they lie in buckets."""
    return (GOLDEN / f"{name}.json").read_bytes()


def test_what_is_written_now_is_what_the_second_format_always_was() -> None:
    tables = {3: ORDERS, 7: CUSTOMERS}
    assert cut_file(GOLDEN_STREAM, tables, GOLDEN_SCHEMAS, GOLDEN_CUT).to_bytes() == golden("format2_cut")
    assert cut_file(GOLDEN_STREAM, tables, GOLDEN_SCHEMAS, GOLDEN_LATE).to_bytes() == golden("format2_late")
    assert GOLDEN_BASE.to_bytes() == golden("base")


def test_a_file_of_either_format_is_read_with_the_same_content() -> None:
    cut, late = (CutFile.from_bytes(golden(name)) for name in ("format2_cut", "format2_late"))
    assert (cut.stream, cut.tables, cut.schemas) == (GOLDEN_STREAM, (ORDERS, CUSTOMERS), GOLDEN_SCHEMAS)
    assert cut.content_for([3, 7]) == GOLDEN_CUT
    assert (late.tables, late.content_for([7])) == ((CUSTOMERS,), GOLDEN_LATE)
    assert CutFile.from_bytes(golden("format1_late")) == late
    older = CutFile.from_bytes(golden("format1_cut")).content_for([3, 7])
    orders, customers = GOLDEN_CUT.slices
    empty = (Slice(table_id=3, stream_partition=1), Slice(table_id=7, stream_partition=0))
    assert older == replace(GOLDEN_CUT, start=None, slices=(orders, *empty, customers))
    assert ChainBase.from_bytes(golden("base")) == GOLDEN_BASE


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"format":2}', b"\xff", golden("format2_cut")[:-40]])
def test_a_damaged_file_is_refused_as_such(damage: bytes) -> None:
    with pytest.raises(RegistryError, match="a cut file cannot be read"):
        CutFile.from_bytes(damage)


@pytest.mark.parametrize("name", ["format2_cut", "format2_late", "base"])
def test_a_file_with_a_field_of_another_type_is_refused(name: str) -> None:
    read = ChainBase.from_bytes if name == "base" else CutFile.from_bytes
    content = golden(name).replace(b'"stream_partition":0', b'"stream_partition":"zero"')
    with pytest.raises(RegistryError, match="cannot be read"):
        read(content)
