"""Shapes of MariaDB's tables, its positions, and the ranges in which a table is copied."""

import struct
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysqlreplication.constants import FIELD_TYPE

from cdc_pipeline.errors import DecodeError, SourceError
from cdc_pipeline.sources.mysql.gtid import last_gtid, parse_gtid
from cdc_pipeline.sources.mysql.json_text import json_text
from cdc_pipeline.sources.mysql.row_image import ImageColumn, RowDecoder
from cdc_pipeline.sources.mysql.shape import MysqlColumn, TableShape, may_be_mixed_up, why_retaken
from cdc_pipeline.sources.mysql.table_copy import key_ranges
from cdc_pipeline.sources.mysql.table_map import LogColumn, image_columns
from cdc_pipeline.types.mysql import parse_column_type

MOST_SECONDS = 3
ID = MysqlColumn(name="id", written="int(11)", type="int4", nullable=False)


def shape(*columns: MysqlColumn) -> TableShape:
    return TableShape(columns=(ID, *columns))


def column(
    name: str,
    written: str,
    *,
    charset: str | None = None,
    nullable: bool = True,
    default: str | None = None,
    generated: str = "",
) -> MysqlColumn:
    return MysqlColumn(
        name=name,
        written=written,
        type=parse_column_type(written).name or "",
        charset=charset,
        nullable=nullable,
        default=default,
        generated=generated,
    )


NOTE = column("note", "varchar(20)", charset="utf8mb4")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (shape(NOTE), shape()),
        (shape(), shape(NOTE)),
        (shape(replace(NOTE, nullable=False)), shape(NOTE)),
        (shape(NOTE), shape(column("note", "varchar(40)", charset="utf8mb4"))),
        (shape(NOTE), shape(column("note", "longtext", charset="utf8mb4"))),
        (shape(column("c", "char(9)", charset="utf8mb4")), shape(column("c", "char(10)", charset="utf8mb4"))),
        (shape(column("c", "char(9)", charset="utf8mb4")), shape(column("c", "varchar(9)", charset="utf8mb4"))),
        (shape(column("c", "tinytext", charset="utf8mb4")), shape(column("c", "text", charset="utf8mb4"))),
        (shape(column("c", "tinytext", charset="latin1")), shape(column("c", "varchar(255)", charset="latin1"))),
        (shape(column("c", "varchar(63)", charset="utf8mb4")), shape(column("c", "tinytext", charset="utf8mb4"))),
        (shape(column("b", "varbinary(9)")), shape(column("b", "varbinary(10)"))),
        (shape(column("n", "int(11)")), shape(column("n", "int(5)"))),
        (
            shape(column("k", "enum('a')", charset="utf8mb4")),
            shape(column("k", "enum('a','b')", charset="utf8mb4")),
        ),
    ],
)
def test_a_change_that_events_show_whole_is_followed(before: TableShape, now: TableShape) -> None:
    assert why_retaken(before, now, ["id"]) is None


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (shape(NOTE), shape(column("remark", "varchar(20)", charset="utf8mb4"))),
        (shape(), shape(column("n", "int(11)", default="7"))),
        (shape(NOTE), shape(replace(NOTE, nullable=False))),
        (shape(NOTE), shape(replace(NOTE, nullable=False), column("n", "int(11)"))),
        (shape(), shape(column("n", "int(11)", nullable=False))),
        (shape(), shape(column("n", "int(11)", generated="id + 1"))),
        (shape(column("n", "int(11)")), shape(column("n", "bigint(20)"))),
        (shape(column("n", "int(11)")), shape(column("n", "int(10) unsigned"))),
        (shape(column("d", "decimal(10,2)")), shape(column("d", "decimal(10,3)"))),
        (shape(NOTE), shape(column("note", "varchar(10)", charset="utf8mb4"))),
        (shape(NOTE), shape(column("note", "varchar(20)", charset="latin1"))),
        (shape(NOTE), shape(column("note", "char(40)", charset="utf8mb4"))),
        (shape(column("c", "text", charset="utf8mb4")), shape(column("c", "varchar(3)", charset="utf8mb4"))),
        (shape(column("c", "text", charset="utf8mb4")), shape(column("c", "tinytext", charset="utf8mb4"))),
        (shape(column("c", "varchar(64)", charset="utf8mb4")), shape(column("c", "tinytext", charset="utf8mb4"))),
        (shape(column("c", "longtext", charset="utf8mb4")), shape(column("c", "json"))),
        (shape(column("c", "json")), shape(column("c", "varchar(9)"))),
        (shape(column("c", "enum('a')", charset="utf8mb4")), shape(column("c", "text", charset="utf8mb4"))),
        (shape(column("b", "varbinary(9)")), shape(column("b", "varbinary(8)"))),
        (
            shape(column("k", "enum('a','b')", charset="utf8mb4")),
            shape(column("k", "enum('b','a')", charset="utf8mb4")),
        ),
        (shape(NOTE), TableShape(columns=(NOTE,))),
        (TableShape(columns=(ID,), left_out=("note",)), shape(NOTE)),
    ],
)
def test_any_other_change_needs_a_new_snapshot(before: TableShape, now: TableShape) -> None:
    assert why_retaken(before, now, ["id"]) is not None


def test_a_column_keeps_its_number_and_a_name_that_comes_back_has_another() -> None:
    first = shape(NOTE).numbered({}, 0)
    assert [column.number for column in first.columns] == [1, 2]
    without = replace(shape(), generation=7).numbered({"id": 1, "note": 2}, first.highest)
    assert ([column.number for column in without.columns], without.highest) == ([1], 2)
    again = replace(shape(NOTE), generation=9).numbered({"id": 1}, without.highest)
    number = again.column("note").number
    assert number is not None
    assert number > 2
    assert (again.column("id").number, again.highest) == (1, number)
    assert TableShape.from_json(again.to_json()) == again


def test_rows_of_columns_that_have_another_number_under_the_same_names_pass_for_others() -> None:
    first = shape(NOTE).numbered({}, 0)
    again = replace(shape(NOTE), generation=9).numbered({"id": 1}, first.highest)
    wider = replace(shape(column("note", "varchar(30)", charset="utf8mb4")), generation=9).numbered({"id": 1}, 2)
    computed = replace(shape(), left_out=("note",)).numbered({}, 0)
    assert [now.passes_for(first) for now in (again, wider, first, shape().numbered({}, 0))] == [
        True,
        True,
        False,
        False,
    ]
    assert again.passes_for(computed)
    assert [may_be_mixed_up(shapes) for shapes in ((first, shape(), again, shape()), (shape(), again), (again,))] == [
        True,
        False,
        False,
    ]


def test_a_number_is_new_also_where_it_is_not_known_which_ones_there_were() -> None:
    """As after the loss of the metadata store: the schema of the newest slice has only the columns that are there."""
    given = replace(shape(NOTE), generation=5).numbered({"id": 1}, 1).column("note").number
    after_loss = replace(shape(NOTE), generation=6).numbered({"id": 1}, 0).column("note").number
    assert given is not None
    assert after_loss is not None
    assert after_loss > given


def test_a_shape_without_numbers_gets_them_with_the_next_snapshot_alone() -> None:
    old = shape(NOTE).numbered({"id": None, "note": None}, 0)
    assert [column.number for column in old.columns] == [None, None]
    assert old.is_now(shape(NOTE).numbered({}, 0))


def test_a_shape_is_read_back_as_it_was_stored() -> None:
    assert TableShape.from_json(shape(NOTE).to_json()) == shape(NOTE)


def test_a_server_that_gives_a_character_set_another_name_has_changed_nothing() -> None:
    """Older servers call it utf8. Both kinds changed that within the versions that are read."""
    old, new = (shape(column("note", "varchar(20)", charset=name)) for name in ("utf8", "utf8mb3"))
    assert TableShape.from_json(old.to_json()) == new


def test_a_computed_column_that_is_left_out_is_passed_over_in_the_rows_of_the_log() -> None:
    without = TableShape(columns=(ID, column("n", "int(11)")), left_out=("twice",))
    assert TableShape.from_json(without.to_json()) == without
    assert not without.is_now(TableShape(columns=without.columns))
    columns = image_columns([log_column("id"), log_column("twice"), log_column("n")], without)
    assert columns is not None
    (rows,) = RowDecoder(columns).images(b"\x00\x01\0\0\0\x02\0\0\0\x03\0\0\0", [b"\x07"])
    assert [image.texts for image in rows] == [[b"1", b"3"]]
    assert image_columns([log_column("id"), log_column("other"), log_column("n")], without) is None


@pytest.mark.parametrize(
    ("kind", "value"), [(FIELD_TYPE.ENUM, b"\2"), (FIELD_TYPE.SET, b"\6"), (FIELD_TYPE.SET, b"\0")]
)
def test_a_computed_list_of_labels_that_is_left_out_is_passed_over_too(kind: int, value: bytes) -> None:
    listed = replace(log_column("kind"), type=kind, length=1, labels=("a", "b", "c"))
    columns = image_columns([log_column("id"), listed], TableShape(columns=(ID,), left_out=("kind",)))
    assert columns is not None
    (rows,) = RowDecoder(columns).images(b"\0\1\0\0\0" + value, [b"\3"])
    assert [image.texts for image in rows] == [[b"1"]]


def log_column(name: str) -> LogColumn:
    return LogColumn(name=name, type=FIELD_TYPE.LONG, length=0, decimals=0, unsigned=False, charset="", labels=())


def test_positions_of_mariadb_follow_the_numbers_of_transactions() -> None:
    assert last_gtid("") is None
    assert last_gtid("0-1-41,0-2-42") == parse_gtid("0-2-42")
    assert parse_gtid("0-2-42").end == 43
    assert str(parse_gtid("3-2-42").at(12)) == "3-2-11"
    assert str(parse_gtid("3-2-42").at(1)) == ""
    with pytest.raises(SourceError, match="one domain"):
        last_gtid("0-1-41,1-1-7")
    with pytest.raises(SourceError, match="a MariaDB GTID"):
        last_gtid("3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5")


@given(low=st.integers(-(2**63), 2**64), rows=st.integers(0, 2**40), count=st.integers(1, 50))
def test_every_number_is_in_exactly_one_range(low: int, rows: int, count: int) -> None:
    ranges = key_ranges("id", low, low + rows, count=count)
    assert len(ranges) <= count
    assert [found["first"] for found in ranges[1:]] == [found["end"] for found in ranges[:-1]]
    assert (ranges[0]["first"], ranges[-1]["end"]) == (None, None)


def test_a_json_document_of_many_members_is_read_in_time_that_grows_with_its_size() -> None:
    """Each member of a large array is a text behind its length, at an offset of four bytes. The last one is long."""
    large_array, string = 3, 12
    values = [*(b"%d" % number for number in range(20_000)), b"x" * (2 << 21)]
    sizes = [*(bytes([len(value)]) for value in values[:-1]), b"\x80\x80\x80\2"]
    places, start = bytearray(), 8 + 5 * len(values)
    for size, value in zip(sizes, values, strict=True):
        places += struct.pack("<BI", string, start)
        start += len(size) + len(value)
    texts = b"".join(size + value for size, value in zip(sizes, values, strict=True))
    before = time.process_time()
    found = json_text(struct.pack("<BII", large_array, len(values), start) + places + texts)
    assert time.process_time() - before < MOST_SECONDS
    assert found == b"[%s]" % b", ".join(b'"%s"' % value for value in values)


@given(octets=st.binary(max_size=60))
def test_bytes_that_are_no_json_give_no_other_error_than_such_bytes_of_a_row(octets: bytes) -> None:
    with suppress(DecodeError, IndexError, ValueError, struct.error):
        json_text(octets)


@given(octets=st.binary(max_size=60), bitmap=st.binary(min_size=2, max_size=2))
def test_bytes_that_are_no_rows_give_one_clear_error(octets: bytes, bitmap: bytes) -> None:
    kinds = {
        FIELD_TYPE.LONG: 0,
        FIELD_TYPE.VARCHAR: 300,
        FIELD_TYPE.BLOB: 2,
        FIELD_TYPE.NEWDECIMAL: 12,
        FIELD_TYPE.TIME2: 0,
        FIELD_TYPE.DATETIME2: 0,
        FIELD_TYPE.TIMESTAMP2: 0,
        FIELD_TYPE.ENUM: 1,
        FIELD_TYPE.SET: 1,
        FIELD_TYPE.BIT: 9,
        FIELD_TYPE.DOUBLE: 0,
    }
    decoder = RowDecoder(
        [
            ImageColumn(name=str(kind), type=kind, length=length, decimals=3, labels=(b"a", b"b"))
            for kind, length in kinds.items()
        ]
    )
    try:
        rows = decoder.images(octets, [bitmap])
    except DecodeError:
        return
    assert all(len(image.texts) == len(kinds) for (image,) in rows)
