"""Encodes whole columns of versions at once, as the same texts that `record.encode_version` gives."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_DIGITS = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_POSITION_DIGITS, _ORDINAL_DIGITS = 16, 8
_LENGTH = _POSITION_DIGITS + 1 + _ORDINAL_DIGITS


def version_texts(commit_positions: npt.NDArray[np.int64], ordinals: npt.NDArray[np.int64]) -> pa.Array:
    """Returns one version per pair of position and ordinal."""
    rows = len(commit_positions)
    texts = np.full((rows, _LENGTH), ord("-"), dtype=np.uint8)
    texts[:, :_POSITION_DIGITS] = _hexadecimal(commit_positions, _POSITION_DIGITS)
    texts[:, _POSITION_DIGITS + 1 :] = _hexadecimal(ordinals, _ORDINAL_DIGITS)
    offsets = np.arange(rows + 1, dtype=np.int32) * _LENGTH
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(texts)]
    return pa.Array.from_buffers(pa.string(), rows, buffers)


def _hexadecimal(numbers: npt.NDArray[np.int64], digits: int) -> npt.NDArray[np.uint8]:
    shifts = np.arange(digits - 1, -1, -1, dtype=np.uint64) * np.uint64(4)
    nibbles = numbers.astype(np.uint64)[:, np.newaxis] >> shifts & np.uint64(15)
    letters: npt.NDArray[np.uint8] = _DIGITS[nibbles]
    return letters
