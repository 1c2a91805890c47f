"""For any column of values: what PostgreSQL would print parses back to the value, or is marked as unfit."""

from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_pipeline.types import Parsed, parse_text, resolve

INPUTS = st.sampled_from([pa.string(), pa.string_view(), pa.large_string(), pa.binary()])
QUOTED_WHEN_BARE = set('{}",\\ \t\n\r\v\f')
FIRST = datetime(1, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
NO_SURROGATES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


def parse(texts: list[str | None], type_name: str, data: st.DataObject) -> Parsed:
    """Through any of the input types, and as a slice of a longer column."""
    offset = data.draw(st.integers(0, 2))
    whole = pa.array([*["x"] * offset, *texts], pa.string()).cast(data.draw(INPUTS))
    parsed = parse_text(whole.slice(offset), resolve(type_name))
    parsed.values.validate(full=True)
    return parsed


def marks(parsed: Parsed) -> list[bool]:
    return [False] * len(parsed.values) if parsed.unfit is None else parsed.unfit.to_pylist()


def array_text(elements: list[str | None]) -> str:
    return "{" + ",".join("NULL" if element is None else element_text(element) for element in elements) + "}"


def element_text(element: str) -> str:
    if element and element.upper() != "NULL" and not QUOTED_WHEN_BARE & set(element):
        return element
    return '"' + element.replace("\\", "\\\\").replace('"', '\\"') + '"'


@settings(deadline=None)
@given(values=st.lists(st.none() | NO_SURROGATES), data=st.data())
def test_any_text_comes_through(values: list[str | None], data: st.DataObject) -> None:
    assert parse(values, "text", data).values.to_pylist() == values


@settings(deadline=None)
@given(values=st.lists(st.none() | st.binary(max_size=40)), data=st.data())
def test_any_bytes_come_through(values: list[bytes | None], data: st.DataObject) -> None:
    texts = [None if value is None else f"\\x{value.hex()}" for value in values]
    assert parse(texts, "bytea", data).values.to_pylist() == values


@settings(deadline=None)
@given(values=st.lists(st.none() | st.integers(-(1 << 63), (1 << 63) - 1)), data=st.data())
def test_any_integer_comes_through(values: list[int | None], data: st.DataObject) -> None:
    texts = [None if value is None else str(value) for value in values]
    assert parse(texts, "int8", data).values.to_pylist() == values


@settings(deadline=None)
@given(values=st.lists(st.none() | st.floats(allow_nan=False)), data=st.data())
def test_any_float_comes_through(values: list[float | None], data: st.DataObject) -> None:
    texts = [None if value is None else repr(value).replace("inf", "Infinity") for value in values]
    assert parse(texts, "float8", data).values.to_pylist() == values


@settings(deadline=None)
@given(data=st.data(), precision=st.integers(1, 38))
def test_a_decimal_comes_through_exactly_when_its_digits_fit(data: st.DataObject, precision: int) -> None:
    scale = data.draw(st.integers(0, precision))
    wide = st.decimals(-(10**20), 10**20, places=data.draw(st.integers(0, 20)), allow_nan=False)
    narrow = st.integers(-(10**precision) + 1, 10**precision - 1).map(lambda number: shifted(number, scale))
    values = data.draw(st.lists(st.none() | wide | narrow | st.just(Decimal("NaN"))))
    texts = [None if value is None else f"{value:f}" for value in values]
    parsed = parse(texts, f"numeric({precision},{scale})", data)
    fits = [value is not None and fitting(value, precision, scale) for value in values]
    assert parsed.values.to_pylist() == [value if fit else None for value, fit in zip(values, fits, strict=True)]
    assert marks(parsed) == [value is not None and not fit for value, fit in zip(values, fits, strict=True)]


def shifted(number: int, scale: int) -> Decimal:
    return Decimal(number).scaleb(-scale, Context(prec=40))


def fitting(value: Decimal, precision: int, scale: int) -> bool:
    if value.is_nan():
        return False
    moved = value.scaleb(scale, Context(prec=80))
    return moved == int(moved) and moved.copy_abs() < 10**precision


@settings(deadline=None)
@given(values=st.lists(st.none() | st.dates()), data=st.data())
def test_any_date_of_the_years_1_to_9999_comes_through(values: list[date | None], data: st.DataObject) -> None:
    strange = data.draw(st.sampled_from(["infinity", "-infinity", "0001-12-31 BC", "10000-01-01", "5874897-01-01"]))
    texts = [strange, *(None if value is None else value.isoformat() for value in values)]
    parsed = parse(texts, "date", data)
    assert parsed.values.to_pylist() == [None, *values]
    assert marks(parsed) == [True, *[False] * len(values)]


OFFSETS = st.integers(-15 * 3600, 15 * 3600) | st.integers(-60, 60).map(lambda quarters: quarters * 900) | st.just(0)


@settings(deadline=None)
@given(moments=st.lists(st.none() | st.tuples(st.datetimes(), OFFSETS)), data=st.data())
def test_any_instant_at_any_offset_comes_through_in_utc(
    moments: list[tuple[datetime, int] | None], data: st.DataObject
) -> None:
    parsed = parse([None if moment is None else zoned_text(*moment) for moment in moments], "timestamptz", data)
    expected = [None if moment is None else instant(*moment) for moment in moments]
    assert parsed.values.to_pylist() == expected
    missing = [moment is not None and at is None for moment, at in zip(moments, expected, strict=True)]
    assert marks(parsed) == missing


def zoned_text(local: datetime, offset: int) -> str:
    hours, rest = divmod(abs(offset), 3600)
    minutes, seconds = divmod(rest, 60)
    zone = f"{'-' if offset < 0 else '+'}{hours:02d}"
    if minutes or seconds:
        zone += f":{minutes:02d}"
    if seconds:
        zone += f":{seconds:02d}"
    return stamp_text(local) + zone


def stamp_text(local: datetime) -> str:
    fraction = f".{local.microsecond:06d}".rstrip("0") if local.microsecond else ""
    return local.replace(microsecond=0).isoformat(" ") + fraction


def instant(local: datetime, offset: int) -> datetime | None:
    since_first = local.replace(tzinfo=UTC) - FIRST - timedelta(seconds=offset)
    return FIRST + since_first if timedelta(0) <= since_first <= LAST - FIRST else None


@settings(deadline=None)
@given(values=st.lists(st.none() | st.datetimes()), data=st.data())
def test_any_local_timestamp_comes_through(values: list[datetime | None], data: st.DataObject) -> None:
    texts = [None if value is None else stamp_text(value) for value in values]
    assert parse(texts, "timestamp", data).values.to_pylist() == values


@settings(deadline=None)
@given(values=st.lists(st.none() | st.lists(st.none() | NO_SURROGATES | st.just("null"))), data=st.data())
def test_any_array_of_texts_comes_through(values: list[list[str | None] | None], data: st.DataObject) -> None:
    texts = [None if value is None else array_text(value) for value in values]
    assert parse(texts, "text[]", data).values.to_pylist() == values


@settings(deadline=None)
@given(values=st.lists(st.none() | st.lists(st.none() | st.dates() | st.just("infinity"))), data=st.data())
def test_an_array_with_one_unfit_element_is_unfit_as_a_whole(
    values: list[list[date | str | None] | None], data: st.DataObject
) -> None:
    texts = [None if value is None else array_text([str(day) if day else None for day in value]) for value in values]
    parsed = parse(texts, "date[]", data)
    unfit = [value is not None and "infinity" in value for value in values]
    assert parsed.values.to_pylist() == [None if bad else value for value, bad in zip(values, unfit, strict=True)]
    assert marks(parsed) == unfit
