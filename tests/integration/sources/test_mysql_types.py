"""Every type of MariaDB and MySQL: its values are the same by stream and by copy. What does not fit stays whole."""

import json
from contextlib import closing
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from cdc_pipeline.record import OPERATION
from tests.support.event_files import events_of
from tests.support.mariadb import connected, is_mariadb, is_older
from tests.support.mysql_source import MysqlShop, read_copy, read_stream, shown
from tests.support.pipelines import consume, set_up_and_consume

VALUES = {
    "TINYINT": ["-128", "127"],
    "TINYINT UNSIGNED": ["255", "0"],
    "SMALLINT": ["-32768", "32767"],
    "SMALLINT UNSIGNED": ["65535"],
    "MEDIUMINT": ["-8388608", "8388607"],
    "MEDIUMINT UNSIGNED": ["16777215"],
    "INT": ["-2147483648", "2147483647"],
    "INT UNSIGNED": ["4294967295"],
    "INT(7) ZEROFILL": ["42", "0"],
    "BIGINT": ["-9223372036854775808", "9223372036854775807"],
    "BIGINT UNSIGNED": ["18446744073709551615", "0"],
    "DECIMAL(12,4)": ["-99999999.9999", "0.0001", "0", "-0.5"],
    "DECIMAL(9)": ["999999999", "-1"],
    "DECIMAL(65,30)": ["'-12345678901234567890123456789012345.123456789012345678901234567890'", "1"],
    "DECIMAL(5,2) ZEROFILL": ["3.14", "0"],
    "FLOAT": ["3.4028234e38", "-1.17549435e-38", "0.1", "16777217"],
    "DOUBLE": ["1.7976931348623157e308", "0.1", "-5e-324", "1e22"],
    "DOUBLE(10,2)": ["0.125", "-3.14"],
    "BIT(1)": ["1", "0"],
    "BIT(12)": ["b'101100111000'", "1"],
    "BIT(64)": ["18446744073709551615", "1"],
    "DATE": ["'1000-01-01'", "'9999-12-31'", "'0001-01-01'"],
    "TIME": ["'-838:59:59'", "'838:59:59'", "'00:00:00'"],
    "TIME(1)": ["'-01:02:03.4'", "'25:00:00.9'"],
    "TIME(3)": ["'-00:00:00.001'", "'100:00:00.120'"],
    "TIME(6)": ["'-838:59:58.999999'", "'00:00:00.000001'"],
    "DATETIME": ["'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'"],
    "DATETIME(1)": ["'2024-02-29 12:00:00.9'"],
    "DATETIME(4)": ["'2024-02-29 12:00:00.0123'"],
    "DATETIME(6)": ["'2024-02-29 23:59:59.999999'", "'1969-12-31 23:59:59.000001'"],
    "TIMESTAMP NULL": ["'2038-01-19 03:14:07'", "'1970-01-01 00:00:01'"],
    "TIMESTAMP(3) NULL": ["'2024-03-31 01:30:00.250'"],
    "TIMESTAMP(6) NULL": ["'2024-10-27 01:30:00.000001'"],
    "YEAR": ["1901", "2155", "0"],
    "CHAR(10)": ["'trailing  '", "''", "'Zürich'"],
    "VARCHAR(300)": ["'💶 naïve'", "'a  '", r"'x\ny'", "'NULL'"],
    "VARCHAR(20) CHARACTER SET latin1": ["'€ smörgås'", "'plain'", r"_latin1 x'8190'"],
    "VARCHAR(20) CHARACTER SET utf8mb3": ["'žluť'"],
    "VARCHAR(20) CHARACTER SET ucs2": ["'žluť'"],
    "VARCHAR(20) CHARACTER SET utf16": ["'💶'"],
    "VARCHAR(20) CHARACTER SET utf32": ["'💶'"],
    "VARCHAR(20) CHARACTER SET cp1251": ["'привет'"],
    "VARCHAR(20) CHARACTER SET gbk": ["'汉字'"],
    "VARCHAR(20) CHARACTER SET cp932": ["'漢字ｶﾅ'"],
    "TEXT": ["'a text'", "''", "REPEAT('é', 1000)"],
    "LONGTEXT": ["REPEAT('long ', 20000)"],
    "BINARY(4)": ["x'01000000'", "x'00000000'", "x'deadbeef'"],
    "VARBINARY(300)": ["x'00ff00'", "''", "x'20'"],
    "BLOB": ["x'00ff'", "''"],
    "MEDIUMBLOB": ["REPEAT(x'00ff', 40000)"],
    "ENUM('small','größe','it''s')": ["'größe'", "'it''s'", "''"],
    "SET('b','a','ü')": ["'a,b'", "''", "'ü,b'"],
    r"ENUM('a\\b','two\nlines','c')": [r"'a\\b'", r"'two\nlines'"],
    r"SET('c:\\d','it''s')": [r"'c:\\d,it''s'"],
    "ENUM('男','女') CHARACTER SET gbk": ["'女'"],
    "ENUM('ä','Â£','x') CHARACTER SET latin1": ["'Â£'", "'x'"],
    "ENUM('new','paid') CHARACTER SET utf16": ["'paid'"],
    "SET('new','ü') CHARACTER SET ucs2": ["'new,ü'"],
    "JSON": ["""'{"b": [1, 2.50], "a": null}'"""],
    "POINT": ["POINT(1, 2)"],
    "GEOMETRY": ["ST_GeomFromText('LINESTRING(0 0, 1 1)', 4326)"],
}
SQL_JSON = (
    "CAST(CAST('2024-02-29' AS DATE) AS JSON)",
    "CAST(CAST('2024-02-29 23:59:59.123456' AS DATETIME(6)) AS JSON)",
    "CAST(TIMESTAMP('1999-12-31 00:00:00') AS JSON)",
    "CAST(CAST('-838:59:58.5' AS TIME(1)) AS JSON)",
    "CAST(CAST('00:00:00.000001' AS TIME(6)) AS JSON)",
    "CAST(-12345678901234567890.0123456789 AS JSON)",
    "json_array(1.10, -0.5, 0.0, 18446744073709551615, -9223372036854775808, 1e0, -0e0, 1e-300)",
    "json_object('bytes', x'00ff10', 'many', REPEAT(x'ab', 200))",
    "CAST(b'101' AS JSON)",
    "json_array(2196164410265027.2e0, -4168621047075569.5e0, 1e14, 1e15, 1e16, 123456789012345680e0, 1e-15, 1e-16)",
    "CAST(POINT(1, 2.5) AS JSON)",
    "json_array(NULL, true, false, json_array(), json_object())",
    "json_object('long', REPEAT('é', 40000), 'number', 70000, 'more', json_array(-40000, 5000000000, NULL))",
    "json_array(REPEAT('a', 127), REPEAT('b', 128), REPEAT('c', 16384))",
    """CAST('"quotes \\\\" \\\\\\\\ \\\\u0000 \\\\u001f \\\\n \\\\t / 💶"' AS JSON)""",
)
DOCUMENTS = 300
NAMES = [f"c{number}" for number in range(len(VALUES))]
UNFIT = {
    "DATE": ["'0000-00-00'", "'2024-00-10'", "'2024-02-00'"],
    "DATETIME": ["'0000-00-00 00:00:00'"],
    "DATETIME(3)": ["'2024-00-00 00:00:00.000'"],
    "TIMESTAMP NULL": ["'0000-00-00 00:00:00'"],
}


def test_every_value_is_the_same_by_stream_and_by_copy(shop: MysqlShop) -> None:
    columns = ", ".join(f"{name} {type_}" for name, type_ in zip(NAMES, VALUES, strict=True))
    shop.run(f"CREATE TABLE drawn (id INT PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
    depth = max(map(len, VALUES.values()))
    with shop.opened("drawn") as pipeline:
        pipeline.source_setup().set_up()
        for number in range(depth):
            values = ", ".join(each[number] if number < len(each) else "NULL" for each in VALUES.values())
            shop.run("SET SESSION sql_mode = ''", f"INSERT INTO drawn VALUES ({number}, {values})")
        table = shop.name("drawn")
        streamed = read_stream(pipeline)
        copied, unfit = read_copy(pipeline, table)
    assert (streamed.unfit, unfit) == ([], [])
    rows = streamed.rows(table).select(["id", *NAMES]).sort_by("id")
    for name, type_ in zip(NAMES, VALUES, strict=True):
        assert rows[name].to_pylist() == copied[name].to_pylist(), type_
        assert rows[name].null_count == depth - len(VALUES[type_]), type_
    first = dict(zip(VALUES, (copied[name][0].as_py() for name in NAMES), strict=True))
    assert (first["TIME"], first["BIT(12)"], first["BINARY(4)"]) == ("-838:59:59", "101100111000", b"\1\0\0\0")
    assert (first["BIGINT UNSIGNED"], first["SET('b','a','ü')"]) == (Decimal(18446744073709551615), "b,a")
    assert first["VARCHAR(20) CHARACTER SET latin1"] == "€ smörgås"


@pytest.mark.parametrize("octets", [127, 128, 250, 251, 255])
def test_a_label_of_any_length_is_read(shop: MysqlShop, octets: int) -> None:
    label = "y" * octets
    shop.run(f"CREATE TABLE drawn (id INT PRIMARY KEY, kind ENUM('a', '{label}'), kinds SET('{label}', 'b'))")
    with shop.opened("drawn") as pipeline:
        pipeline.source_setup().set_up()
        shop.run(f"INSERT INTO drawn VALUES (1, '{label}', '{label},b')")
        assert shown(read_stream(pipeline), "id", "kind", "kinds") == [("i", 1, label, f"{label},b")]


def test_a_column_name_of_any_length_is_read(shop: MysqlShop) -> None:
    name = "汉" * 64
    shop.run(f"CREATE TABLE drawn (id INT PRIMARY KEY, `{name}` INT, n INT)")
    with shop.opened("drawn") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO drawn VALUES (1, 2, 3)")
        assert shown(read_stream(pipeline), "id", name, "n") == [("i", 1, 2, 3)]


def test_a_value_that_the_lake_cannot_hold_is_quarantined_whole_by_both_ways(shop: MysqlShop) -> None:
    columns = ", ".join(f"u{number} {type_}" for number, type_ in enumerate(UNFIT))
    shop.run(f"CREATE TABLE drawn (id INT PRIMARY KEY, {columns})")
    with shop.opened("drawn") as pipeline:
        pipeline.source_setup().set_up()
        for number, (type_, literals) in enumerate(UNFIT.items()):
            del type_
            for place, literal in enumerate(literals):
                statement = f"INSERT INTO drawn (id, u{number}) VALUES ({10 * number + place}, {literal})"
                shop.run("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'", statement)
        streamed = read_stream(pipeline)
        _, unfit = read_copy(pipeline, shop.name("drawn"))
    by_stream = [(event.column, event.payload[event.column]) for event in streamed.unfit]
    by_copy = [(column, (texts[column] or b"").decode()) for column, texts in unfit]
    assert by_stream == by_copy
    assert len(by_stream) == sum(map(len, UNFIT.values()))


def test_as_text_keeps_what_does_not_fit(shop: MysqlShop) -> None:
    shop.run("CREATE TABLE drawn (id INT PRIMARY KEY, day DATE, amount FLOAT, code BINARY(3), at TIMESTAMP(2) NULL)")
    as_text = {"as_text": ["day", "amount", "code", "at"]}
    with shop.opened("drawn", drawn=as_text) as pipeline:
        pipeline.source_setup().set_up()
        shop.run(
            "SET SESSION sql_mode = '', time_zone = '+02:00'",
            "INSERT INTO drawn VALUES (1, '0000-00-00', 0.1, x'0100', '2024-01-01 02:00:00.5')",
        )
        rows = read_stream(pipeline).rows(shop.name("drawn")).drop_columns([OPERATION]).to_pylist()
        copied, _ = read_copy(pipeline, shop.name("drawn"))
    (row,) = copied.to_pylist()
    assert {name: rows[0][name] for name in row} == row
    assert (row["day"], row["code"], row["at"]) == ("0000-00-00", "\\x010000", "2024-01-01 00:00:00.50+00")


def test_an_excluded_column_is_in_no_row_and_refuses_none(shop: MysqlShop) -> None:
    shop.run("CREATE TABLE drawn (id INT PRIMARY KEY, day DATE, name TEXT)")
    with shop.opened("drawn", drawn={"exclude_columns": ["day"]}) as pipeline:
        set_up_and_consume(pipeline)
        shop.run("SET SESSION sql_mode = ''", "INSERT INTO drawn VALUES (1, '0000-00-00', 'one')")
        consume(pipeline)
        table = pipeline.store.tables.table(shop.name("drawn"))
        (found,) = pipeline.store.slices.slices(table.table_id, 1, 9)
        schema = pipeline.store.tables.schema(table.table_id, table.schema_id or "")
        assert pipeline.store.inspection.run("quarantine") == []
    assert (found.rows, schema.names) == (1, ("id", "name"))


def random_document(chance: Random, depth: int = 0) -> Any:
    kind = chance.randrange(9 if depth < 4 else 7)
    if kind == 7:
        return [random_document(chance, depth + 1) for _ in range(chance.randrange(6))]
    if kind == 8:
        return {random_text(chance): random_document(chance, depth + 1) for _ in range(chance.randrange(6))}
    digits = chance.randrange(1, 17)
    number = chance.randrange(-(10**digits), 10**digits)
    choices = [None, chance.random() < 0.5, random_text(chance), number, number / 10 ** chance.randrange(20)]
    return [*choices, number * 10.0 ** chance.randrange(-320, 290), float(number)][kind]


def random_text(chance: Random) -> str:
    return "".join(chance.choice('aZ "\\\n\té漢💶\x01/') for _ in range(chance.randrange(12)))


@pytest.mark.parametrize("binlog_server", ["mysql8"], indirect=True)
def test_every_json_value_of_mysql_has_the_text_of_the_server(shop: MysqlShop) -> None:
    """MySQL logs JSON in a binary form; MariaDB's JSON is a text, which needs no rule."""
    shop.run("CREATE TABLE documents (id INT PRIMARY KEY, body JSON)")
    chance = Random(1)
    with shop.opened("documents") as pipeline:
        pipeline.source_setup().set_up()
        for number, expression in enumerate(SQL_JSON):
            shop.run(f"INSERT INTO documents VALUES ({number}, {expression})")
        documents = [(100 + number, json.dumps(random_document(chance))) for number in range(DOCUMENTS)]
        with closing(connected(shop.url, shop.database)) as connection, connection.cursor() as cursor:
            cursor.executemany("INSERT INTO documents VALUES (%s, %s)", documents)
            connection.commit()
        streamed = read_stream(pipeline)
        copied, unfit = read_copy(pipeline, shop.name("documents"))
    assert (streamed.unfit, unfit) == ([], [])
    rows = streamed.rows(shop.name("documents")).select(["id", "body"]).sort_by("id").to_pylist()
    expected = copied.sort_by("id").to_pylist()
    for row, copy in zip(rows, expected, strict=True):
        assert row == copy
    assert len(expected) == DOCUMENTS + len(SQL_JSON)


def test_an_update_may_come_without_a_computed_column_that_is_excluded(shop: MysqlShop) -> None:
    shop.run("CREATE TABLE computed (id INT PRIMARY KEY, a INT, twice INT AS (a * 2) VIRTUAL)")
    is_read = is_older(shop.url, mariadb=(11,)) or not is_mariadb(shop.url)
    with shop.opened("computed", computed={"exclude_columns": ["twice"] if is_read else []}) as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO computed (id, a) VALUES (1, 5)")
        shop.run("SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE computed SET a = 6")
        consume(pipeline)
        assert [row["a"] for row in events_of(pipeline, shop.name("computed"))] == [5, 6]


def test_computed_columns_and_indexes_on_expressions_are_read_like_others(shop: MysqlShop) -> None:
    index = "" if is_mariadb(shop.url) else ", INDEX ((lower(name))), INDEX ((a * 2), (a + 0.5))"
    shop.run(
        "CREATE TABLE computed (id INT PRIMARY KEY, a INT, twice INT AS (a * 2) VIRTUAL, name VARCHAR(20),"
        f" kept VARCHAR(30) AS (concat(name, '!')) STORED, made DATETIME DEFAULT (now() - INTERVAL 1 DAY){index})"
    )
    with shop.opened("computed") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO computed (id, a, name) VALUES (1, 5, 'Ada'), (2, NULL, NULL), (3, 7, 'Z')")
        shop.run("UPDATE computed SET a = 6, name = 'Éva' WHERE id = 1", "DELETE FROM computed WHERE id = 3")
        events = read_stream(pipeline).rows(shop.name("computed")).drop_columns([OPERATION]).to_pylist()
        copied, _ = read_copy(pipeline, shop.name("computed"))
    kept = {event["id"]: event for event in events}
    rows = copied.to_pylist()
    assert [{name: kept[row["id"]][name] for name in row} for row in rows] == rows
    if is_older(shop.url, mariadb=(11,)) or not is_mariadb(shop.url):
        assert [(row["twice"], row["kept"]) for row in rows] == [(12, "Éva!"), (None, None)]
    else:
        assert [*rows[0]] == ["id", "a", "name", "made"]
