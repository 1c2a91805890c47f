"""Row images of MySQL's log become change events: a key change is the delete of the old id and the move to the new."""

import struct

import pytest
from pymysqlreplication.constants import FIELD_TYPE

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
