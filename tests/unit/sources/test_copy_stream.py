"""Promises of one block of a table copy."""

import pyarrow as pa

from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.sources.mysql.table_copy import block_rows
from cdc_pipeline.sources.postgres.copy_stream import checked_block, parse_block, typed_block
from cdc_pipeline.types.mysql import parse_column_type, parseable_text

SCHEMA = TableSchema(columns=(Column(name="id", type="int4"), Column(name="note", type="text")), key=("id",))
MARK = b"\xef\xbb\xbf"


def test_text_that_is_not_utf8_is_set_apart_and_its_neighbours_live() -> None:
    copied = parse_block(MARK + b'1,good\n2,\xff\n3,"also\ngood"\n', SCHEMA)
    assert copied.rows["note"].to_pylist() == ["good", None, "also\ngood"]
    (unfit,) = copied.unfit_rows
    assert (unfit.row, unfit.column, unfit.texts) == (1, "note", {"id": b"2", "note": b"\xff"})


def test_a_row_without_an_id_is_set_apart() -> None:
    (unfit,) = parse_block(MARK + b"1,a\n,b\n", SCHEMA).unfit_rows
    assert (unfit.row, unfit.column, unfit.reason) == (1, "id", "the id column id is NULL")


def test_a_block_has_the_schema_of_its_table_even_where_a_column_is_all_null() -> None:
    copied = parse_block(MARK + b"1,\n2,\n", SCHEMA)
    assert [str(type_) for type_ in copied.rows.schema.types] == ["int32", "string"]
    assert copied.rows["note"].null_count == 2


def test_a_bit_of_the_source_is_a_boolean_where_the_lake_has_what_debezium_sent_for_it() -> None:
    table = TableSchema(columns=(Column(name="id", type="int4"), Column(name="it", type="boolean")), key=("id",))
    typed = typed_block(MARK + b"1,1\n2,0\n3,\n4,t\n", table)
    assert typed is not None
    checked = checked_block(MARK + b"1,1\n2,0\n3,\n4,10\n", table)
    to_text = parseable_text(parse_column_type("bit(1)"))
    octets = pa.array([b"\1", b"\0", None], pa.binary())
    batch = pa.RecordBatch.from_arrays([pa.array([b"1", b"2", b"3"]), octets], ["id", "it"])
    of_mysql = block_rows(batch, table, [None, to_text])
    assert typed["it"].to_pylist() == [True, False, None, True]
    assert checked.rows["it"].to_pylist() == [True, False, None, None]
    assert [unfit.row for unfit in checked.unfit_rows] == [3]
    assert (of_mysql.rows["it"].to_pylist(), of_mysql.unfit_rows) == ([True, False, None], ())


ODD = {
    "int2": ("-32768", "7"),
    "int8": ("9223372036854775807", "0"),
    "float4": ("NaN", "-Infinity", "3.4028235e+38", "1e-45", "-0", "0.1"),
    "float8": ("NaN", "Infinity", "-0", "5e-324", "1.7976931348623157e+308", "0.1"),
    "numeric(12,2)": ("-9999999999.99", "0.00", "NaN", "1.5"),
    "numeric(38,0)": ("9" * 38, "-1"),
    "numeric": ("1" + "0" * 50, "NaN", "-Infinity", "0.10"),
    "boolean": ("t", "f"),
    "date": ("0001-01-01", "9999-12-31", "infinity", "10000-01-01", "0044-03-15 BC"),
    "timestamp": ("0001-01-01 00:00:00", "2024-02-29 23:59:59.000001", "-infinity", "0044-03-15 00:00:00 BC"),
    "timestamptz": ("0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00", "infinity", "2024-02-29 01:02:03.5+00"),
    "bytea": (r"\x", r"\x00ff"),
    "text": ('""', '"a ""b"", é\n"', " x ", "\\N", "NULL", "t"),
    "jsonb": ('"{""a"": [1, null]}"',),
    "int4[]": ('"{1,NULL,-2}"', "{}", '"{{1,2},{3,4}}"', '"[2:3]={1,2}"'),
    "text[]": ('"{NULL,""NULL"",""a,b""}"', "{}"),
    "date[]": ('"{2024-01-01,infinity}"',),
}
"""Type -> values as PostgreSQL writes them in CSV."""


def test_a_value_is_the_same_whatever_its_neighbours_are() -> None:
    """The CSV reader types a block whose values all fit; another block is parsed column by column."""
    for type_name, texts in ODD.items():
        table = TableSchema(columns=(Column(name="id", type="int4"), Column(name="it", type=type_name)), key=("id",))
        lines = [f"{number},{text}\n".encode() for number, text in enumerate((*texts, ""))]
        together = parse_block(MARK + b"".join(lines), table)
        alone = [parse_block(MARK + line, table) for line in lines]
        assert repr(together.rows["it"].to_pylist()) == repr([row.rows["it"][0].as_py() for row in alone]), type_name
        assert [unfit.row for unfit in together.unfit_rows] == [
            number for number, row in enumerate(alone) if row.unfit_rows
        ]
        assert {row.rows.schema for row in alone} == {together.rows.schema}, type_name


def test_values_that_fit_are_read_by_the_csv_reader_as_by_the_rules_of_their_types() -> None:
    for type_name, texts in ODD.items():
        table = TableSchema(columns=(Column(name="id", type="int4"), Column(name="it", type=type_name)), key=("id",))
        for text in texts:
            block = MARK + f"1,{text}\n2,\n".encode()
            typed, checked = typed_block(block, table), checked_block(block, table)
            assert typed is None or not checked.unfit_rows, (type_name, text)
            assert typed is None or repr(typed["it"].to_pylist()) == repr(checked.rows["it"].to_pylist()), text
