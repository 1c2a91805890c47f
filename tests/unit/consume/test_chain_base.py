"""The base of a chain of cut files is read as it was written."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from cdc_pipeline.consume.chain_base import ChainBase, ReadThrough, order_of
from cdc_pipeline.consume.cut_file import TableIdentity
from cdc_pipeline.errors import RegistryError
from cdc_pipeline.metadata_store.ledger.cut import BEGINNING
from cdc_pipeline.metadata_store.ledger.records import Stream
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
