"""Assigns ids to stream partitions by a hash of their texts that is the same on every machine and in every release."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_OFFSET_BASIS = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_COLUMN_END = np.uint64(0x1F)


def stable_hash(id_columns: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
    """Returns the 64-bit FNV-1a hash of each id, over the texts of its columns, each followed by one separator byte.

    The columns are text arrays of equal length; a NULL counts as the empty text. All rows are hashed at once, in one
    pass per byte position of the longest text.
    """
    digest = np.full(len(id_columns[0]), _OFFSET_BASIS)
    for column in id_columns:
        texts = column.cast(pa.large_binary())
        starts, content = _layout(texts)
        lengths = np.diff(starts)
        for position in range(int(lengths.max(initial=0))):
            rows = np.flatnonzero(lengths > position)
            digest[rows] = (digest[rows] ^ content[starts[rows] + position]) * _PRIME
        digest = (digest ^ _COLUMN_END) * _PRIME
    return digest


def stream_partition(id_columns: Sequence[pa.Array], partitions: int) -> npt.NDArray[np.int64]:
    """Returns the stream partition of each id, from 0 to `partitions` - 1."""
    if partitions == 1:
        return np.zeros(len(id_columns[0]), dtype=np.int64)
    return (stable_hash(id_columns) % np.uint64(partitions)).astype(np.int64)


def _layout(texts: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    present = texts.fill_null(b"")
    _, offsets, content = present.buffers()
    starts = np.frombuffer(offsets, dtype=np.int64)[present.offset : present.offset + len(present) + 1]
    size = content.size if content is not None else 0
    data = np.frombuffer(content, dtype=np.uint8) if size else np.zeros(0, dtype=np.uint8)
    return starts, data.astype(np.uint64)
