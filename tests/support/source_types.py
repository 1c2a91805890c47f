"""Types of a PostgreSQL server with values to write: strange ones, and ones to draw."""

import json
import uuid
from dataclasses import dataclass, field
from datetime import date

from hypothesis import strategies as st

Values = st.SearchStrategy[str]
CREATE_TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'it''s "fine"');
CREATE DOMAIN price AS numeric(10,2);
CREATE DOMAIN numbers AS int[];
CREATE DOMAIN low_price AS price CHECK (value < 100);
CREATE DOMAIN good_mood AS mood CHECK (value <> 'sad');
CREATE TYPE pair AS (a int, b text);
CREATE TYPE nested AS (first pair, days date[], price low_price);
CREATE TYPE span AS RANGE (subtype = float8, multirange_type_name = spans);
CREATE TYPE colon;
CREATE FUNCTION colon_in(cstring) RETURNS colon LANGUAGE internal STRICT IMMUTABLE AS 'textin';
CREATE FUNCTION colon_out(colon) RETURNS cstring LANGUAGE internal STRICT IMMUTABLE AS 'textout';
CREATE TYPE colon (INPUT = colon_in, OUTPUT = colon_out, LIKE = text, DELIMITER = ':')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceType:
    """`sql` as a column declares it; all values are texts that the type's input takes."""

    sql: str
    strange: tuple[str, ...]
    drawn: Values = field(default_factory=st.nothing)

    @property
    def values(self) -> Values:
        return st.sampled_from(self.strange) | self.drawn


def _integers(bits: int) -> Values:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1).map(str)


def _decimals(digits: int, places: int) -> Values:
    """Within `digits` digits before the point."""
    most = 10**digits - 1
    return st.decimals(-most, most, places=places, allow_nan=False).map(lambda value: f"{value:f}")


def _floats(width: int) -> Values:
    return st.floats(width=64 if width == 64 else 32).map(repr)


def _array(elements: Values) -> Values:
    return st.lists(st.none() | elements, max_size=4).map(array_literal)


def array_literal(elements: list[str | None]) -> str:
    return "{" + ",".join("NULL" if each is None else _quoted(each) for each in elements) + "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _interval(months: int, days: int, microseconds: int) -> str:
    return f"{months} mons {days} days {microseconds} microseconds"


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
STAMPS = st.datetimes().map(str)
FAR = st.builds(
    "{:05d}-{:02d}-{:02d}{}".format,
    st.integers(1, 200_000),
    st.integers(1, 12),
    st.integers(1, 28),
    st.sampled_from(["", " BC"]),
).filter(lambda text: not text.endswith("BC") or text < "04713")
OUTSIDE = ("infinity", "-infinity", "0044-03-15 BC", "4713-01-01 BC", "10000-01-01")
CLOCKS = st.times().map(str)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS, lambda part: st.lists(part, max_size=3), max_leaves=4
).map(json.dumps)
INTERVALS = st.builds(_interval, st.integers(-400, 400), st.integers(-400, 400), st.integers(-(10**13), 10**13))
FLOAT_PAIRS = st.tuples(*[st.floats(allow_nan=False)] * 2).map(lambda pair: f"({pair[0]!r},{pair[1]!r})")

TYPES = (
    SourceType(sql="boolean", strange=("t", "f")),
    SourceType(sql="int2", strange=("-32768", "32767"), drawn=_integers(16)),
    SourceType(sql="int4", strange=("-2147483648", "0"), drawn=_integers(32)),
    SourceType(sql="int8", strange=("9223372036854775807", "-9223372036854775808"), drawn=_integers(64)),
    SourceType(sql="oid", strange=("0", "4294967295")),
    SourceType(
        sql="float4", strange=("NaN", "Infinity", "-Infinity", "-0", "1e-45", "3.4028235e38"), drawn=_floats(32)
    ),
    SourceType(sql="float8", strange=("NaN", "Infinity", "-Infinity", "-0", "5e-324", "1e15"), drawn=_floats(64)),
    SourceType(sql="numeric(10,4)", strange=("123.456", "-999999.9999", "NaN", "0"), drawn=_decimals(6, 4)),
    SourceType(sql="numeric(38,10)", strange=("9" * 28 + ".9999999999", "NaN"), drawn=_decimals(28, 10)),
    SourceType(sql="numeric(38,38)", strange=("-0." + "9" * 38, "NaN"), drawn=_decimals(0, 30)),
    SourceType(sql="numeric(50,2)", strange=("1.5", "9" * 48 + ".01", "NaN"), drawn=_decimals(48, 2)),
    SourceType(sql="numeric(10,20)", strange=("0.00000000001234567890", "0"), drawn=st.just("1e-20")),
    SourceType(sql="numeric(10,-2)", strange=("123456", "-999999999900", "49", "NaN"), drawn=_decimals(11, 0)),
    SourceType(
        sql="numeric",
        strange=("NaN", "Infinity", "-Infinity", "1e-30", "0.10", "1" + "0" * 40, "9" * 400 + "." + "1" * 400),
        drawn=st.integers(0, 30).flatmap(lambda places: _decimals(45, places)),
    ),
    SourceType(sql="money", strange=("-12.34", "1234567.89", "0")),
    SourceType(sql="text", strange=("", "NULL", "\\N", '{"', "a\r\nb\tc", "\ufeff😀", "\\."), drawn=TEXTS),
    SourceType(sql="varchar(20)", strange=("", "  two  "), drawn=TEXTS),
    SourceType(sql="char(12)", strange=("", "short", "  x"), drawn=TEXTS),
    SourceType(sql='"char"', strange=("", "x", "\\377")),
    SourceType(sql="name", strange=("", "a name"), drawn=st.text("abc é\"'", max_size=9)),
    SourceType(
        sql="bytea",
        strange=("\\x", "\\xDEADBEEF", "\\x00"),
        drawn=st.binary(max_size=20).map(lambda octets: f"\\x{octets.hex()}"),
    ),
    SourceType(sql="uuid", strange=("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",), drawn=st.uuids().map(uuid.UUID.__str__)),
    SourceType(sql="json", strange=("null", '"\\ud800"', '{"a":1, "a" : 1.00}', '"\\u0000"'), drawn=JSON),
    SourceType(sql="jsonb", strange=("null", '{"b":1, "a" : 1.00}', "[]", "1e400")),
    SourceType(sql="jsonpath", strange=("$.a[*] ? (@ > 1)",)),
    SourceType(
        sql="date",
        strange=(*OUTSIDE, "0001-01-01", "9999-12-31", "5874897-12-31", "1582-10-10"),
        drawn=st.dates().map(date.isoformat) | FAR,
    ),
    SourceType(
        sql="timestamp",
        strange=(*OUTSIDE, "1969-12-31 23:59:59.999999", "294276-12-31 23:59:59.999999"),
        drawn=STAMPS | FAR,
    ),
    SourceType(sql="timestamp(3)", strange=("2024-01-01 00:00:00.1235", "infinity"), drawn=STAMPS),
    SourceType(
        sql="timestamptz",
        strange=(*OUTSIDE, "0001-01-01 00:00:00+01", "9999-12-31 23:59:59-01", "1890-01-01 00:00:15+00:00:15"),
        drawn=STAMPS.map(lambda text: f"{text}-05:30") | FAR,
    ),
    SourceType(sql="time", strange=("24:00:00", "00:00:00", "23:59:59.999999", "12:30:00.5"), drawn=CLOCKS),
    SourceType(sql="timetz", strange=("12:30:00.5+00",), drawn=CLOCKS.map(lambda text: f"{text}+00")),
    SourceType(sql="interval", strange=("0", "1 day", "-1 year +2 mons -00:00:03", "100000 hours"), drawn=INTERVALS),
    SourceType(sql="bit(5)", strange=("00000", "00101", "11111")),
    SourceType(sql="varbit", strange=("", "0", "00101")),
    SourceType(sql="inet", strange=("10.0.0.1", "10.1.2.3/8", "::ffff:1.2.3.4", "fe80::1/64")),
    SourceType(sql="cidr", strange=("10.0.0.0/8", "10.0.0.1")),
    SourceType(sql="macaddr", strange=("08:00:2b:01:02:03",)),
    SourceType(sql="macaddr8", strange=("08:00:2b:01:02:03:04:05",)),
    SourceType(sql="point", strange=("(1,2)", "(-0,1e15)", "(1e-5,Infinity)", "(NaN,0.0001)"), drawn=FLOAT_PAIRS),
    SourceType(sql="line", strange=("{1,2,3}", "{0,-1,1e300}")),
    SourceType(sql="lseg", strange=("[(1,2),(3,4)]", "[(-0,1e-300),(NaN,Infinity)]")),
    SourceType(sql="box", strange=("(1,2),(3,4)",)),
    SourceType(sql="path", strange=("[(1,2),(3,4)]",)),
    SourceType(sql="polygon", strange=("((1,2),(3,4))",)),
    SourceType(sql="circle", strange=("<(1,2),3>",)),
    SourceType(sql="int4range", strange=("empty", "[1,2]", "(,5)", "(,)")),
    SourceType(sql="numrange", strange=("[1.10,2)",)),
    SourceType(sql="daterange", strange=("[2024-01-01,infinity)",)),
    SourceType(sql="tsrange", strange=('["2024-01-01 00:00","2024-01-02 12:00:00.5")',)),
    SourceType(sql="tstzrange", strange=('["2024-01-01 00:00+02",)',)),
    SourceType(sql="int4multirange", strange=("{}", "{[1,3),[5,8)}")),
    SourceType(sql="int8range", strange=("[-9223372036854775808,9223372036854775807)", "(,)")),
    SourceType(sql="int8multirange", strange=("{[1,9223372036854775807),(,-5)}",)),
    SourceType(sql="nummultirange", strange=("{[1.10,NaN]}", "{}")),
    SourceType(sql="datemultirange", strange=("{[2024-01-01,infinity)}", "{(,4713-01-01 BC)}")),
    SourceType(sql="tsmultirange", strange=('{["0044-03-15 00:00 BC",infinity]}',)),
    SourceType(sql="tstzmultirange", strange=('{["2024-01-01 00:00+02","10000-01-01 00:00+00")}',)),
    SourceType(sql="span", strange=("[1.5,2.5]", "[-Infinity,NaN]")),
    SourceType(sql="spans", strange=("{[1.5,2.5],[3,4)}",)),
    SourceType(sql="tsvector", strange=("'a':1 'b c':2A", "", "'it''s':16383")),
    SourceType(sql="tsquery", strange=("'a' & !'b c':*A", "'a' <2> 'b'")),
    SourceType(sql="xid", strange=("0", "4294967295")),
    SourceType(sql="cid", strange=("4294967295",)),
    SourceType(sql="tid", strange=("(4294967295,65535)", "(0,0)")),
    SourceType(sql="pg_snapshot", strange=("10:20:10,14,15",)),
    SourceType(sql="txid_snapshot", strange=("10:20:10,14,15",)),
    SourceType(sql="refcursor", strange=("a cursor", "")),
    SourceType(sql="regtype", strange=("integer", "timestamp with time zone")),
    SourceType(sql="regproc", strange=("pg_typeof", "-")),
    SourceType(sql="oidvector", strange=("", "1 4294967295")),
    SourceType(sql="pg_lsn", strange=("0/0", "FFFFFFFF/1")),
    SourceType(sql="xid8", strange=("18446744073709551615",)),
    SourceType(sql="regclass", strange=("pg_class",)),
    SourceType(sql="int2vector", strange=("", "1 2 3")),
    SourceType(sql="mood", strange=("sad", 'it\'s "fine"')),
    SourceType(sql="price", strange=("1.5", "NaN"), drawn=_decimals(8, 2)),
    SourceType(sql="low_price", strange=("1.5", "-99999999.99")),
    SourceType(sql="good_mood", strange=("ok", 'it\'s "fine"')),
    SourceType(sql="numbers", strange=("{}", "{1,NULL}")),
    SourceType(sql="nested", strange=('("(1,""a, b"")","{2024-01-01,infinity,NULL}",1.50)', "(,,)")),
    SourceType(sql="pair", strange=("(,)", '(1,"a, ""b"" \\\\")', '(,"")')),
    SourceType(sql="int4[]", strange=("{}", "{1,NULL,3}", "{{1,2},{3,4}}", "[0:1]={1,2}"), drawn=_array(_integers(32))),
    SourceType(
        sql="text[]",
        strange=('{NULL,"NULL",null,"null"}', '{""}', '{"{","\\\\"}', "{{a,b},{c,d}}"),
        drawn=_array(TEXTS),
    ),
    SourceType(sql="numeric(5,2)[]", strange=("{1.5,NaN}", "{1.5,NULL}"), drawn=_array(_decimals(3, 2))),
    SourceType(sql="numeric[]", strange=("{NaN,1e-10,Infinity}",)),
    SourceType(sql="boolean[]", strange=("{t,f,NULL}",)),
    SourceType(sql="float8[]", strange=("{NaN,-0,Infinity}",), drawn=_array(_floats(64))),
    SourceType(sql="date[]", strange=("{2024-01-01,infinity}",), drawn=_array(st.dates().map(date.isoformat))),
    SourceType(sql="timestamptz[]", strange=('{"2024-01-01 00:00+00",NULL}',)),
    SourceType(sql="bytea[]", strange=('{"\\\\x","\\\\x00ff",NULL}',)),
    SourceType(sql="uuid[]", strange=("{}",), drawn=_array(st.uuids().map(uuid.UUID.__str__))),
    SourceType(sql="box[]", strange=("{(1,1),(0,0);(2,2),(1,1)}",)),
    SourceType(sql="colon[]", strange=("{a,b:c}", "{}")),
    SourceType(sql="mood[]", strange=('{sad,"it\'s \\"fine\\"",NULL}',)),
    SourceType(sql="pair[]", strange=('{"(1,\\"a,b\\")",NULL}',)),
    SourceType(sql="int4range[]", strange=('{"[1,3)",empty}',)),
    SourceType(sql="good_mood[]", strange=("{ok,NULL}",)),
    SourceType(sql="low_price[]", strange=("{1.5,NULL}", "{{1,2},{3,4}}")),
    SourceType(sql="nested[]", strange=('{"(\\"(1,a)\\",{},1.50)",NULL}',)),
    SourceType(sql="jsonb[]", strange=('{"{\\"a\\": [1, null]}",null,"null"}',)),
    SourceType(sql="interval[]", strange=('{"1 mon -2 days",NULL}',)),
    SourceType(sql="time[]", strange=("{24:00:00,NULL}",)),
    SourceType(sql="timestamp[]", strange=('{"2024-01-01 00:00:00",infinity}', '{"0001-01-01 00:00:00"}')),
    SourceType(sql="money[]", strange=("{-12.34,NULL}",)),
    SourceType(sql="bit(3)[]", strange=("{101,NULL}",)),
    SourceType(sql="inet[]", strange=("{10.1.2.3/8,::1}",)),
    SourceType(sql="point[]", strange=('{"(1,2)",NULL}',)),
    SourceType(sql="tsvector[]", strange=("{\"'a':1 'b c':2A\"}",)),
    SourceType(sql="datemultirange[]", strange=('{"{[2024-01-01,infinity)}",NULL}',)),
    SourceType(sql="oid[]", strange=("{4294967295,NULL}",)),
    SourceType(sql="int2[]", strange=("{-32768,32767}",)),
    SourceType(sql="float4[]", strange=("{1e-45,NaN}",)),
    SourceType(sql="varchar(5)[]", strange=('{"a,b",NULL}',)),
    SourceType(sql='"char"[]', strange=("{x,NULL}",)),
    SourceType(sql="xid8[]", strange=("{18446744073709551615}",)),
    SourceType(sql="price[]", strange=("{1.5,NaN}", "{1.5}")),
)
