"""Decodes tuples of pgoutput column by column, for all rows at once, into Arrow views into one buffer of messages."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_pipeline.sources.pgoutput.messages import damaged

Integers = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

NULL, UNCHANGED, TEXT = b"nut"
_HEADER = 5
_INLINE = 12
_PADDING = bytes(16)
MAX_FEED_BYTES = (1 << 31) - 1 - len(_PADDING)
_VIEW = np.dtype([("length", "<i4"), ("head", "<u8"), ("tail", "<u4")])
_HEAD_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TupleColumn:
    """One column of a row group.

    `values` is a string_view array of PostgreSQL's texts. `absent` marks values that the server did not send (unchanged
    TOAST); they are NULL in `values`. It is None if the server sent all values.
    """

    values: pa.Array
    absent: Mask | None

    def since(self, row: int) -> "TupleColumn":
        """Returns the column from this row on."""
        return TupleColumn(values=self.values.slice(row), absent=None if self.absent is None else self.absent[row:])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fields:
    """One column of a set of tuples: kind, start offset and length in bytes of each field."""

    kinds: Octets
    starts: Integers
    lengths: Integers


class MessageBuffer:
    """All messages of a feed in one buffer. Arrow views point into it and keep it in memory. Every read is checked."""

    def __init__(self, payloads: Sequence[bytes]) -> None:
        joined = b"".join((*payloads, _PADDING))
        lengths = np.fromiter(map(len, payloads), np.int64, len(payloads))
        if len(joined) - len(_PADDING) > MAX_FEED_BYTES:
            raise damaged(f"a feed of {len(joined)} bytes", f"at most {MAX_FEED_BYTES} bytes in one feed")
        if len(payloads) and not lengths.min():
            raise damaged("a message of 0 bytes", "at least its kind")
        self.ends = np.cumsum(lengths)
        self.starts = self.ends - lengths
        self.octets: Octets = np.frombuffer(joined, np.uint8)
        self.kinds = self.octets[self.starts]
        self._buffer = pa.py_buffer(joined)
        self._joined = joined

    def integers(self, places: Integers, dtype: str) -> Integers:
        """Reads big-endian integers at any byte offset. A 64-bit one must be below 2**63, as all positions are."""
        return self._at(places, dtype).astype(np.int64)

    def message(self, index: int) -> bytes:
        return self._joined[self.starts[index] : self.ends[index]]

    def walk(self, places: Integers, ends: Integers, column_count: int) -> tuple[list[_Fields], Integers]:
        """Returns the fields of the tuples that begin at the offsets `places`, by column, and the offsets after them.

        Raises DecodeError for a tuple that has another number of columns or does not end before `ends`.
        """
        self._check(places + 2, ends)
        counts = self.integers(places, ">u2")
        if (counts != column_count).any():
            found = int(counts[counts != column_count][0])
            raise damaged(f"a tuple of {found} columns", f"{column_count} columns as its relation says")
        places = places + 2
        columns = []
        for _ in range(column_count):
            fields = self._fields(places, ends)
            places = fields.starts + fields.lengths
            columns.append(fields)
        return columns, places

    def column(self, fields: _Fields, rows: Integers, row_count: int) -> TupleColumn:
        """Returns a column of `row_count` values: the fields at `rows`, NULL in all other rows."""
        present = fields.kinds == TEXT
        if present.all() and len(rows) == row_count:
            return TupleColumn(values=self._views(fields.starts, fields.lengths, None), absent=None)
        starts, lengths = np.zeros(row_count, np.int64), np.zeros(row_count, np.int64)
        starts[rows] = fields.starts
        lengths[rows] = fields.lengths
        valid = np.zeros(row_count, np.bool_)
        valid[rows] = present
        unchanged = fields.kinds == UNCHANGED
        absent = None
        if unchanged.any():
            absent = np.zeros(row_count, np.bool_)
            absent[rows] = unchanged
        return TupleColumn(values=self._views(starts, lengths, valid), absent=absent)

    def _fields(self, places: Integers, ends: Integers) -> _Fields:
        self._check(places + 1, ends)
        kinds = self.octets[places]
        has_value = kinds == TEXT
        if has_value.all():
            self._check(places + _HEADER, ends)
            lengths = self.integers(places + 1, ">u4")
            starts = places + _HEADER
        else:
            unknown = ~has_value & (kinds != NULL) & (kinds != UNCHANGED)
            if unknown.any():
                found = bytes([kinds[unknown][0]])
                raise damaged(f"a tuple field of kind {found!r}", "one of n, u, t")
            self._check(places + np.where(has_value, _HEADER, 1), ends)
            lengths = np.where(has_value, self.integers(places + 1, ">u4"), 0)
            starts = places + np.where(has_value, _HEADER, 1)
        self._check(starts + lengths, ends)
        return _Fields(kinds=kinds, starts=starts, lengths=lengths)

    def _views(self, starts: Integers, lengths: Integers, valid: Mask | None) -> pa.Array:
        """Builds Arrow's 16-byte views: values up to 12 bytes inline, else a prefix of 4, buffer 0 and the offset."""
        views = np.empty(len(starts), _VIEW)
        views["length"] = lengths
        short = lengths <= _INLINE
        heads, tails = self._at(starts, "<u8"), self._at(starts + _HEAD_BYTES, "<u4")
        head_masks, tail_masks = _inline_masks()
        inline = np.minimum(lengths, _INLINE)
        views["head"] = heads & head_masks[inline]
        views["tail"] = tails & tail_masks[inline]
        if not short.all():
            long = ~short
            views["head"][long] = heads[long] & np.uint64(0xFFFFFFFF)
            views["tail"][long] = starts[long]
        validity = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(pa.string_view(), len(starts), [validity, pa.py_buffer(views), self._buffer])

    def _at(self, places: Integers, dtype: str) -> npt.NDArray[np.integer]:
        """Reads numbers at any byte offset, through one overlapping window of the buffer."""
        element = np.dtype(dtype)
        window: npt.NDArray[np.integer] = np.ndarray(
            (len(self._joined) - element.itemsize + 1,), element, buffer=self._joined, strides=(1,)
        )
        return window[places]

    def _check(self, places: Integers, ends: Integers) -> None:
        beyond = places > ends
        if beyond.any():
            excess = int((places - ends)[beyond][0])
            raise damaged("a message that ends inside of a tuple", f"{excess} more bytes")


def _inline_masks() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    """Returns masks, by length, of the bits that belong to a value of at most 12 bytes: first 8 bytes and next 4."""
    head = [(1 << 8 * min(length, _HEAD_BYTES)) - 1 for length in range(_INLINE + 1)]
    tail = [(1 << 8 * max(length - _HEAD_BYTES, 0)) - 1 for length in range(_INLINE + 1)]
    return np.array(head, np.uint64), np.array(tail, np.uint32)
