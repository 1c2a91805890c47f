"""Promises of a table copy, on a real server."""

import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg2
import psycopg2.extensions
import pytest

from cdc_pipeline.errors import SourceAway, SourceError
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.sources.postgres.copy_stream import copy_record_batches
from cdc_pipeline.steps import Moment


@pytest.fixture
def connection(database: str) -> Iterator[psycopg2.extensions.connection]:
    with closing(psycopg2.connect(database)) as opened:
        yield opened


def schema(**columns: str) -> TableSchema:
    described = tuple(Column(name=name, type=type_) for name, type_ in columns.items())
    return TableSchema(columns=described, key=(described[0].name,))


def copied(
    connection: psycopg2.extensions.connection, query: str, described: TableSchema, block_bytes: int = 1 << 20
) -> list[dict[str, object]]:
    batches = [copy.rows for copy in copy_record_batches(connection, query, described, block_bytes=block_bytes)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_null_and_the_empty_text_stay_apart(connection: psycopg2.extensions.connection) -> None:
    query = "SELECT * FROM (VALUES (1, NULL), (2, ''), (3, 'NULL'), (4, '\\N')) AS rows (id, note)"
    rows = copied(connection, query, schema(id="int4", note="text"))
    assert [row["note"] for row in rows] == [None, "", "NULL", "\\N"]


def test_a_table_of_one_column_keeps_its_null_rows(connection: psycopg2.extensions.connection) -> None:
    query = "SELECT * FROM (VALUES (NULL), (''), (NULL), ('\\.'), (NULL)) AS rows (note)"
    rows = copied(connection, query, schema(note="text"), block_bytes=1)
    assert [row["note"] for row in rows] == [None, "", None, "\\.", None]


def test_a_byte_order_mark_at_the_start_of_a_block_is_data(connection: psycopg2.extensions.connection) -> None:
    query = "SELECT E'\\uFEFFmarked' AS note FROM generate_series(1, 3)"
    rows = copied(connection, query, schema(note="text"), block_bytes=1)
    assert [row["note"] for row in rows] == ["\ufeffmarked"] * 3


def test_quotes_separators_and_line_ends_come_through_at_every_block_size(
    connection: psycopg2.extensions.connection,
) -> None:
    text = 'a,"b"\r\nc\rd\n\n\\.\n"'
    literal = psycopg2.extensions.QuotedString(text).getquoted().decode()
    query = f"SELECT number, {literal} FROM generate_series(1, 9) number"
    for block_bytes in (1, 60, 1 << 20):
        rows = copied(connection, query, schema(id="int4", note="text"), block_bytes)
        assert rows == [{"id": number, "note": text} for number in range(1, 10)]


def test_a_value_larger_than_the_block_comes_through(connection: psycopg2.extensions.connection) -> None:
    query = "SELECT number, repeat(E'0123456789abcde\\n', 1 << 20) FROM generate_series(1, 3) number"
    rows = copied(connection, query, schema(id="int4", note="text"), block_bytes=1 << 16)
    assert [len(str(row["note"])) for row in rows] == [16 << 20] * 3


def test_blocks_hold_about_the_bytes_they_were_told(connection: psycopg2.extensions.connection) -> None:
    query = "SELECT number, repeat('x', 90) FROM generate_series(1, 1000) number"
    copies = list(copy_record_batches(connection, query, schema(id="int4", note="text"), block_bytes=10_000))
    assert len(copies) == 10
    assert sum(copy.rows.num_rows for copy in copies) == 1000


def test_no_rows_give_no_batches(connection: psycopg2.extensions.connection) -> None:
    assert copied(connection, "SELECT 1 WHERE false", schema(id="int4")) == []


def test_unfit_values_are_null_and_their_rows_come_beside_whole(connection: psycopg2.extensions.connection) -> None:
    query = "SELECT * FROM (VALUES (1, '2024-01-01'::date), (2, 'infinity'), (3, '0044-03-15 BC')) AS rows (id, day)"
    (copy,) = copy_record_batches(connection, query, schema(id="int4", day="date"))
    assert copy.rows["day"].is_null().to_pylist() == [False, True, True]
    assert [(unfit.column, unfit.row) for unfit in copy.unfit_rows] == [("day", 1), ("day", 2)]
    assert [(unfit.row, unfit.column) for unfit in copy.unfit_rows] == [(1, "day"), (2, "day")]
    assert [unfit.texts for unfit in copy.unfit_rows] == [
        {"id": b"2", "day": b"infinity"},
        {"id": b"3", "day": b"0044-03-15 BC"},
    ]


def test_a_refused_query_says_so_and_never_hangs(connection: psycopg2.extensions.connection) -> None:
    with pytest.raises(SourceError, match=r"the source refuses a copy: .*nowhere"):
        copied(connection, "SELECT * FROM nowhere", schema(id="int4"))


def test_an_error_in_the_middle_of_a_copy_comes_out_after_the_rows_before_it(
    connection: psycopg2.extensions.connection,
) -> None:
    query = "SELECT 1 / (500 - number) FROM generate_series(1, 1000) number"
    copies = copy_record_batches(connection, query, schema(id="int4"), block_bytes=100)
    assert next(copies).rows.num_rows > 0
    with pytest.raises(SourceError, match="division by zero"):
        list(copies)


def test_a_lost_connection_can_be_tried_again(connection: psycopg2.extensions.connection, database: str) -> None:
    copies = copy_record_batches(connection, "SELECT generate_series(1, 1000000000)", schema(id="int4"))
    next(copies)
    with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", (connection.get_backend_pid(),))
    with pytest.raises(SourceAway) as caught:
        list(copies)
    assert caught.value.retryable


def test_closing_early_ends_the_query_and_leaves_no_thread(connection: psycopg2.extensions.connection) -> None:
    threads = threading.active_count()
    copies = copy_record_batches(connection, "SELECT generate_series(1, 1000000000)", schema(id="int4"))
    next(copies)
    copies.close()
    assert threading.active_count() == threads
    connection.rollback()
    assert copied(connection, "SELECT 7", schema(id="int4")) == [{"id": 7}]


def test_a_kill_at_the_copy_step_comes_out_of_the_iterator(connection: psycopg2.extensions.connection) -> None:
    def kill(name: str, moment: Moment) -> None:
        if (name, moment) == ("source.copy", Moment.BEFORE):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(copy_record_batches(connection, "SELECT 1", schema(id="int4"), on_step=kill))


BUILT_IN = {
    "boolean": ("true", [True]),
    "int2": ("-32768", [-32768]),
    "oid": ("4294967295", [4294967295]),
    "float4": ("'3.4028235e38'", None),
    "float8": ("'-Infinity'", [float("-inf")]),
    "numeric(38,38)": ("0.00000000000000000000000000000000000001", None),
    "numeric": ("'1e50'", ["1" + "0" * 50]),
    "numeric(50,2)": ("1.5", ["1.50"]),
    "bytea": ("'\\x00ff'", [b"\x00\xff"]),
    "timestamptz": ("'9999-12-31 23:59:59.999999+00'", None),
    "time": ("'24:00:00'", ["24:00:00"]),
    "interval": ("'1 year 2 days 00:00:03'", ["1 year 2 days 00:00:03"]),
    "money": ("'12.5'", None),
    "bit(3)": ("B'101'", ["101"]),
    "inet": ("'10.0.0.1'", ["10.0.0.1"]),
    "jsonb": ("'{\"a\": [1, null]}'", ['{"a": [1, null]}']),
    "point": ("'(1,2)'", ["(1,2)"]),
    "int4range": ("'[1,3)'", ["[1,3)"]),
    "text[]": ("ARRAY['a\"b', NULL, 'NULL', '', E'c\\\\d', 'é,{}']", [['a"b', None, "NULL", "", "c\\d", "é,{}"]]),
    "int4[]": ("ARRAY[]::int4[]", [[]]),
    "box[]": ("ARRAY['(1,1),(0,0)'::box, '(2,2),(1,1)'::box]", [["(1,1),(0,0)", "(2,2),(1,1)"]]),
    "timestamptz[]": ("ARRAY['2024-01-01'::timestamptz]", None),
    "bytea[]": ("ARRAY['\\x6162'::bytea, NULL]", [[b"ab", None]]),
    "numeric(5,2)[]": ("ARRAY[1.5, 2]", None),
}


@pytest.mark.parametrize("type_name", BUILT_IN)
def test_a_value_of_each_type_comes_through_the_server_as_it_was_written(
    connection: psycopg2.extensions.connection, type_name: str
) -> None:
    literal, expected = BUILT_IN[type_name]
    query = f"SELECT 1, ({literal})::{type_name} UNION ALL SELECT 2, NULL"
    (copy,) = copy_record_batches(connection, query, schema(number="int4", value=type_name))
    value, null = copy.rows["value"].to_pylist()
    assert copy.unfit_rows == ()
    assert null is None
    assert value is not None
    assert expected is None or [value] == expected
