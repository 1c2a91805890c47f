"""Promises of one block of a table copy."""

from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.sources.postgres.copy_stream import parse_block

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
