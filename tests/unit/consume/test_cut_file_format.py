"""The bytes of cut files: those that lie in buckets are read for ever, and what cannot be read is refused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from cdc_pipeline.consume.chain_base import ChainBase, ReadThrough
from cdc_pipeline.consume.cut_file import CutFile, TableIdentity, cut_file
from cdc_pipeline.errors import RegistryError
from cdc_pipeline.metadata_store.ledger.cut import Cut, LateSlice, PartitionRange, QuarantinedEvent, Slice
from cdc_pipeline.metadata_store.ledger.records import Stream
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.time_slice import Label

GOLDEN = Path(__file__).parents[2] / "data" / "cut_files"
MORNING = datetime(2024, 1, 1, 8, tzinfo=UTC)
ORDERS = TableIdentity(
    table_uuid=UUID(int=1),
    name=TableName(database="shop", schema="public", table="orders"),
    source_oid=16400,
    published_as="all",
    cutoff_offset="0000000000000100",
)
CUSTOMERS = TableIdentity(
    table_uuid=UUID(int=2),
    name=TableName(database="shop", schema="public", table="kunden.ä"),
    source_oid=16401,
    stale="it was truncated",
)
STREAM = Stream(name="shop", source_system_identifier="7000", source_timeline=2, slot="cdc_shop")
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
    stream=STREAM,
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


def test_a_file_of_another_format_is_refused() -> None:
    with pytest.raises(RegistryError, match="has the format 3"):
        CutFile.from_bytes(golden("format2_late").replace(b'"format":2', b'"format":3'))


def golden(name: str) -> bytes:
    """Bytes that the code of that format wrote; they lie in buckets."""
    return (GOLDEN / f"{name}.json").read_bytes()


def test_what_is_written_now_is_what_the_second_format_always_was() -> None:
    tables = {3: ORDERS, 7: CUSTOMERS}
    assert cut_file(STREAM, tables, GOLDEN_SCHEMAS, GOLDEN_CUT).to_bytes() == golden("format2_cut")
    assert cut_file(STREAM, tables, GOLDEN_SCHEMAS, GOLDEN_LATE).to_bytes() == golden("format2_late")
    assert GOLDEN_BASE.to_bytes() == golden("base")


def test_a_file_of_the_format_is_read_with_the_same_content() -> None:
    cut, late = (CutFile.from_bytes(golden(name)) for name in ("format2_cut", "format2_late"))
    assert (cut.stream, cut.tables, cut.schemas) == (STREAM, (ORDERS, CUSTOMERS), GOLDEN_SCHEMAS)
    assert cut.content_for([3, 7]) == GOLDEN_CUT
    assert (late.tables, late.content_for([7])) == ((CUSTOMERS,), GOLDEN_LATE)
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
