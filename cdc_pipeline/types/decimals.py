"""Texts of numbers -> Arrow decimals.

Arrow's own cast misreads some texts, or ends the process: more than 38 digits wrap around, and a number with many more
digits after the point than the type is multiplied by what is read beyond the end of an array
(apache/arrow issues 49817 and 50964).
"""

import re
from decimal import Decimal, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.types.masks import octets_of, without

_MOST_DIGITS = 38
_PRINTED = r"^(?:-?[0-9]+(?:\.[0-9]+)?|NaN|-?Infinity)$"
"""Numbers as PostgreSQL prints them. Only such a number may be too large or too exact for its type."""
_WITH_EXPONENT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")


def cast_decimals(texts: pa.Array, arrow: pa.Decimal128Type) -> pa.Array:
    """Raises ArrowInvalid if a text is no number, does not fit, or is one that Arrow may misread."""
    if (pc.max(pc.binary_length(texts)).as_py() or 0) > _MOST_DIGITS or _may_have_exponents(texts):
        message = "a number has too many digits, or an exponent"
        raise pa.ArrowInvalid(message)
    return texts.cast(arrow)


def decimal_texts(decimals: pa.Array) -> pa.Array:
    """Returns the digits of Arrow decimals. Arrow writes small ones, and zeros with many digits, with an exponent."""
    texts = decimals.cast(pa.string())
    if not _may_have_exponents(texts):
        return texts
    return pa.array([None if value is None else f"{value:f}" for value in decimals.to_pylist()], pa.string())


def parse_decimals(texts: pa.Array, arrow: pa.Decimal128Type) -> tuple[pa.Array, pa.Array | None]:
    """Returns the values, with NULL for numbers that do not fit, and a mask of these; None if all fit.

    Raises ArrowInvalid for a text that is no number, or that does not fit and is not one that PostgreSQL prints.
    """
    try:
        return cast_decimals(texts, arrow), None
    except pa.ArrowInvalid:
        plain = _without_exponents(texts)
    whole, fraction = arrow.precision - arrow.scale, arrow.scale
    form = rf"^([-+]?)0*([0-9]{{0,{whole}}})(?:(\.[0-9]{{0,{fraction}}})0*)?$"
    fitting = pc.and_(pc.match_substring_regex(plain, form), pc.match_substring_regex(plain, "[0-9]"))
    if not pc.all(pc.or_(fitting, pc.match_substring_regex(texts, _PRINTED)), min_count=0).as_py():
        message = "not a number"
        raise pa.ArrowInvalid(message)
    unfit = pc.fill_null(pc.invert(fitting), fill_value=False)
    # Without zeros around it, a number that fits has at most 38 digits. One zero stays in front.
    shortest = pc.replace_substring_regex(without(plain, unfit), form, r"\10\2\3")
    return shortest.cast(arrow), unfit if pc.any(unfit).as_py() else None


def _may_have_exponents(texts: pa.Array) -> bool:
    """Looks at all values at once: a fifth of the time of a search in each."""
    octets = octets_of(texts)
    return b"e" in octets or b"E" in octets


def _have_exponents(texts: pa.Array) -> pa.Array:
    return pc.or_(pc.match_substring(texts, "e"), pc.match_substring(texts, "E"))


def _without_exponents(texts: pa.Array) -> pa.Array:
    """Returns numbers with an exponent as plain digits. Those that no decimal holds stay as they are."""
    with_exponents = pc.fill_null(_have_exponents(texts), fill_value=False)
    plain = [_plain(text) for text in texts.filter(with_exponents).to_pylist()]
    return pc.replace_with_mask(texts, with_exponents, pa.array(plain, texts.type))


def _plain(text: str) -> str:
    if not _WITH_EXPONENT.fullmatch(text):
        return text
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text  # the exponent has more than eighteen digits
    sign, digits, _ = number.as_tuple()
    significant = "".join(map(str, digits)).rstrip("0")
    if not significant.lstrip("0"):
        return "0"
    exponent = number.adjusted() - len(significant) + 1
    if exponent < -_MOST_DIGITS or number.adjusted() > _MOST_DIGITS:
        return text
    return f"{Decimal((sign, tuple(map(int, significant)), exponent)):f}"
