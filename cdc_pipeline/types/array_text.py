r"""PostgreSQL's array literals (`{1,NULL,"a \"b\""}`) -> Arrow lists. Only one-dimensional arrays fit."""

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.types.masks import either, without
from cdc_pipeline.types.table import ColumnType

ParseElements = Callable[[pa.Array, ColumnType], tuple[pa.Array, pa.Array | None]]
_OTHER_SHAPE = r"^(?:\{\{|\[)"
_ONE_DIMENSION = r"(?s)^\{.*\}$"
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ELEMENT = r'(?:"((?:[^"\\]|\\.)*)"|([^%s"{}\\]+))(?:%s|$)'
_TEXTS = pa.list_(pa.string())


def parse_arrays(
    strings: pa.Array, element: ColumnType, delimiter: str, parse_elements: ParseElements
) -> tuple[pa.Array, pa.Array | None]:
    """Returns one list per text, and a mask of unfit arrays: other dimensions or bounds, or an unfit element."""
    unfit = pc.fill_null(pc.match_substring_regex(strings, _OTHER_SHAPE), fill_value=False)
    strings = without(strings, unfit)
    if not pc.all(pc.match_substring_regex(strings, _ONE_DIMENSION), min_count=0).as_py():
        message = "not an array literal"
        raise pa.ArrowInvalid(message)
    result, unfit_rows = parse_lists(_split(strings, delimiter), element, parse_elements)
    unfit = either(unfit, unfit_rows)
    return result, unfit if pc.any(unfit).as_py() else None


def parse_lists(
    lists: pa.Array, element: ColumnType, parse_elements: ParseElements
) -> tuple[pa.Array, pa.Array | None]:
    """Lists of element texts -> lists of values. A list with an unfit element is unfit as a whole."""
    values, unfit_elements = parse_elements(lists.flatten(), element)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int32)
    null = lists.is_null().to_numpy(zero_copy_only=False)
    unfit_rows = None
    if unfit_elements is not None:
        unfit_rows, kept = _rows_of(unfit_elements, lengths)
        lengths[unfit_rows] = 0
        null = null | unfit_rows
        values = values.filter(pa.array(kept))
    offsets = np.concatenate((np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)))
    result = pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(null))
    return result.cast(pa.list_(element.arrow)), None if unfit_rows is None else pa.array(unfit_rows)


def _rows_of(
    unfit_elements: pa.Array, lengths: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Returns a mask of the arrays that have an unfit element, and a mask of the elements of all other arrays."""
    parents = np.repeat(np.arange(len(lengths)), lengths)
    rows = np.zeros(len(lengths), np.bool_)
    rows[parents[unfit_elements.to_numpy(zero_copy_only=False)]] = True
    return rows, ~rows[parents]


def _split(strings: pa.Array, delimiter: str) -> pa.Array:
    """Returns lists of element texts, with NULL elements as NULL. Only arrays with quotes are parsed one by one."""
    quoted = pc.fill_null(pc.match_substring(strings, '"'), fill_value=False)
    plain = _split_plain(without(strings, quoted), delimiter)
    if not pc.any(quoted).as_py():
        return plain
    pattern = re.compile(_ELEMENT % (delimiter, delimiter), re.DOTALL)
    parsed = pa.array([_split_quoted(text, pattern) for text in strings.filter(quoted).to_pylist()], _TEXTS)
    is_quoted = quoted.to_numpy(zero_copy_only=False)
    places = np.arange(len(strings))
    places[is_quoted] = len(strings) + np.arange(len(parsed))
    return pa.concat_arrays([plain, parsed]).take(pa.array(places))


def _split_plain(strings: pa.Array, delimiter: str) -> pa.Array:
    """Splits literals without quotes. An empty text comes only from `{}`, because PostgreSQL quotes empty elements."""
    bodies = pc.utf8_slice_codeunits(strings, 1, -1)
    lists = pc.split_pattern(bodies, delimiter)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int32)
    lengths[pc.fill_null(pc.equal(bodies, ""), fill_value=False).to_numpy(zero_copy_only=False)] = 0
    elements = lists.flatten()
    elements = elements.filter(pc.not_equal(elements, ""))
    elements = without(elements, pc.equal(elements, "NULL"))
    offsets = np.concatenate((np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)))
    if offsets[-1] != len(elements):
        message = "an element without text or quotes"
        raise pa.ArrowInvalid(message)
    return pa.ListArray.from_arrays(pa.array(offsets), elements, mask=strings.is_null())


def _split_quoted(text: str, pattern: re.Pattern[str]) -> list[str | None]:
    elements: list[str | None] = []
    place, end = 1, len(text) - 1
    while place < end:
        match = pattern.match(text, place, end)
        if match is None:
            message = "an array literal with an unclosed quote"
            raise pa.ArrowInvalid(message)
        quoted, bare = match.groups()
        elements.append(_ESCAPED.sub(r"\1", quoted) if bare is None else None if bare == "NULL" else bare)
        place = match.end()
    return elements
