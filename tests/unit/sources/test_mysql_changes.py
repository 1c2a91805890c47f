"""Row images of MySQL's log become change events: a key change is the delete of the old id and the move to the new."""

import struct

import pyarrow as pa
import pytest
from pymysqlreplication.constants import FIELD_TYPE

from cdc_pipeline.errors import TableStale
from cdc_pipeline.record import OPERATION, Column, TableName, TableSchema
from cdc_pipeline.sources.mysql.changes import ChangeGroup, Place
from cdc_pipeline.sources.mysql.row_image import ImageColumn, RowDecoder, RowImage

ORDERS = TableName(database="shop", schema="public", table="orders")
PLACE = Place(commit_position=100, ordinal=1, commit_time=1_700_000_000_000_000)
FLOATS = {
    "float4": ImageColumn(name="id", type=FIELD_TYPE.FLOAT),
    "float8": ImageColumn(name="id", type=FIELD_TYPE.DOUBLE),
}
LAYOUTS = {"float4": "<f", "float8": "<d"}


def image(type_name: str, number: float) -> RowImage:
    row = b"\0" + struct.pack(LAYOUTS[type_name], number)
    ((found,),) = RowDecoder([FLOATS[type_name]]).images(row, [b"\1"])
    return found


def operations_of_update(type_name: str, old: float, new: float) -> list[str]:
    schema = TableSchema(columns=(Column(name="id", type=type_name),), key=("id",))
    group = ChangeGroup(table=ORDERS, schema=schema)
    group.update(image(type_name, old), image(type_name, new), PLACE)
    events = group.table_events(1)
    assert not events.unfit
    operations: list[str] = events.rows[OPERATION].to_pylist()
    return operations


@pytest.mark.parametrize("type_name", FLOATS)
def test_minus_zero_and_zero_are_one_id(type_name: str) -> None:
    assert operations_of_update(type_name, -0.0, 0.0) == ["u"]
    assert operations_of_update(type_name, 0.0, -0.0) == ["u"]
    assert operations_of_update(type_name, -0.0, 1.0) == ["d", "m"]


def keyless_update(before: RowImage, after: RowImage) -> pa.Table:
    schema = TableSchema(columns=(Column(name="a", type="int4"), Column(name="b", type="text")), key=())
    group = ChangeGroup(table=ORDERS, schema=schema)
    group.update(before, after, PLACE)
    return group.table_events(1).rows


def test_a_new_row_without_its_unchanged_values_takes_them_from_the_whole_old_row_also_without_a_key() -> None:
    """MariaDB leaves them out with binlog_row_image = FULL_NODUP."""
    whole = RowImage(texts=[b"1", b"old"], present=(True, True))
    rows = keyless_update(whole, RowImage(texts=[None, b"new"], present=(False, True)))
    assert rows.select([OPERATION, "a", "b"]).to_pylist() == [
        {OPERATION: "d", "a": 1, "b": "old"},
        {OPERATION: "i", "a": 1, "b": "new"},
    ]


def test_an_update_without_a_key_and_without_the_whole_old_row_is_refused() -> None:
    part = RowImage(texts=[None, b"old"], present=(False, True))
    with pytest.raises(TableStale, match="an update or delete came without the whole row"):
        keyless_update(part, RowImage(texts=[b"1", b"new"], present=(True, True)))
