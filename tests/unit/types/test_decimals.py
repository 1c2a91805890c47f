"""Texts of numbers that Arrow's own cast would misread, or that would end the process: nothing but what they say."""

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.types import resolve
from cdc_pipeline.types.decimals import cast_decimals, parse_decimals
from cdc_pipeline.types.text import parse_foreign_text

TYPE = pa.decimal128(38, 10)
UNFIT = "unfit"
DIGITS = st.text("0123456789", max_size=60)
NUMBERS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(("", "-", "+")),
    st.text("0123456789", min_size=1, max_size=60),
    st.one_of(st.just(""), DIGITS.map(".{}".format)),
    st.one_of(
        st.just(""), st.integers(-90, 90).map("E{}".format), st.sampled_from(("e-6926006", "E+99999999999999999999"))
    ),
)


def read(text: str) -> Decimal | str:
    parsed = parse_foreign_text(pa.array([text]), resolve("numeric(38,10)"))
    return UNFIT if parsed.unfit is not None and parsed.unfit[0].as_py() else parsed.values[0].as_py()


def expected(text: str) -> Decimal | str:
    try:
        number = Decimal(text)
    except ArithmeticError:
        return UNFIT
    sign, digits, exponent = number.as_tuple()
    if not number:
        return Decimal("0E-10")
    trailing = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    fits = number.adjusted() < TYPE.precision - TYPE.scale and int(exponent) + trailing >= -TYPE.scale
    return Decimal((sign, digits, int(exponent))) if fits else UNFIT


@given(text=NUMBERS)
def test_a_number_is_what_its_text_says_or_does_not_fit(text: str) -> None:
    assert read(text) == expected(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (str(2**128), UNFIT),
        (f"{2**128 + 1}.0000000000", UNFIT),
        ("0." + "0" * 60, Decimal("0E-10")),
        ("0." + "0" * 48 + "1", UNFIT),
        ("1." + "0" * 60, Decimal("1.0000000000")),
        ("0" * 60 + "1", Decimal("1.0000000000")),
        ("1E-49", UNFIT),
        ("4E-6926006", UNFIT),
        ("0E-6926006", Decimal("0E-10")),
        ("1.5e2", Decimal("150.0000000000")),
        ("NaN", UNFIT),
        ("-Infinity", UNFIT),
    ],
)
def test_what_arrow_misreads_is_read(text: str, value: Decimal | str) -> None:
    assert read(text) == value
    if value is UNFIT or len(text) > TYPE.precision or "e" in text.lower():
        with pytest.raises(pa.ArrowInvalid):
            cast_decimals(pa.array([text]), TYPE)


@pytest.mark.parametrize("text", ["", ".", "1_0E2", "E5", "1e", "٣", " 1", "1,5", "--1"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(pa.ArrowInvalid):
        parse_decimals(pa.array([text, "1E2"]), TYPE)


def test_a_column_without_values_has_none() -> None:
    for texts in (pa.array([], pa.string()), pa.nulls(2, pa.string())):
        assert parse_decimals(texts, TYPE)[0].to_pylist() == texts.to_pylist()


def test_others_and_missing_values_of_the_column_stay() -> None:
    parsed = parse_foreign_text(pa.array(["1.5", None, "1E-60", "2E1"]), resolve("numeric(38,10)"))
    assert parsed.values.to_pylist() == [Decimal("1.5"), None, None, Decimal(20)]
    assert parsed.unfit is not None
    assert parsed.unfit.to_pylist() == [False, False, True, False]
