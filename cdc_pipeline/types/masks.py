"""Boolean masks over the values of a column, and the octets of its texts."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def either(first: pa.Array | None, second: pa.Array | None) -> pa.Array | None:
    if first is None or second is None:
        return first if second is None else second
    return pc.or_(first, second)


def without(values: pa.Array, mask: pa.Array) -> pa.Array:
    """The values, with NULL where the mask is true."""
    return pc.if_else(mask, pa.scalar(None, values.type), values)


def octets_of(texts: pa.Array) -> bytes:
    """Returns the octets of all texts, one after the other."""
    _, ends, data = texts.buffers()
    if not len(texts) or data is None:
        return b""
    places = memoryview(ends).cast("i")
    first, last = places[texts.offset], places[texts.offset + len(texts)]
    return bytes(data.slice(first, last - first).to_pybytes())


def rows_refused(values: pa.Array, accept: Callable[[pa.Array], object]) -> pa.Array:
    """Returns a mask of the values for which `accept` raises ArrowInvalid. Refused ranges are halved to find them."""
    refused = np.zeros(len(values), np.bool_)
    ranges = [(0, len(values))]
    while ranges:
        start, end = ranges.pop()
        try:
            accept(values.slice(start, end - start))
        except pa.ArrowInvalid:
            middle = (start + end) // 2
            if middle == start:
                refused[start] = True
            else:
                ranges += [(start, middle), (middle, end)]
    return pa.array(refused)
