"""The stream partition of an id: a stable hash of its text, the same on every machine and in every release."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_OFFSET_BASIS = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_COLUMN_END = np.uint64(0x1F)


def stable_hash(id_columns: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
    """FNV-1a (64 bit) of each id: the bytes of its columns' texts, each column followed by one separator byte.

    Columns are text arrays of one length; a NULL counts as the empty text. Works on all rows at once: one pass per
    byte position of the longest text.
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
    """Stream partition of each id, from 0 to `partitions` - 1."""
    return (stable_hash(id_columns) % np.uint64(partitions)).astype(np.int64)


def _layout(texts: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    present = texts.fill_null(b"")
    _, offsets, content = present.buffers()
    starts = np.frombuffer(offsets, dtype=np.int64)[present.offset : present.offset + len(present) + 1]
    size = content.size if content is not None else 0
    data = np.frombuffer(content, dtype=np.uint8) if size else np.zeros(0, dtype=np.uint8)
    return starts, data.astype(np.uint64)
