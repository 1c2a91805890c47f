"""Encodes whole columns of versions at once, as the same texts that `record.encode_version` gives."""

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_POSITION_DIGITS, _ORDINAL_DIGITS = 16, 8
_LENGTH = _POSITION_DIGITS + 1 + _ORDINAL_DIGITS


def version_texts(commit_positions: npt.NDArray[np.int64], ordinals: npt.NDArray[np.int64]) -> pa.Array:
    """Returns one version per pair of position and ordinal."""
    rows = len(commit_positions)
    texts = np.full((rows, _LENGTH), ord("-"), dtype=np.uint8)
    texts[:, :_POSITION_DIGITS] = _hexadecimal(commit_positions.astype(">u8"))
    texts[:, _POSITION_DIGITS + 1 :] = _hexadecimal(ordinals.astype(">u4"))
    offsets = np.arange(rows + 1, dtype=np.int32) * _LENGTH
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(texts)]
    return pa.Array.from_buffers(pa.string(), rows, buffers)


def prefixed_texts(prefix: str, numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Returns one text per number: the prefix, which is ASCII, and 16 hexadecimal digits."""
    rows, length = len(numbers), len(prefix) + _POSITION_DIGITS
    texts = np.empty((rows, length), dtype=np.uint8)
    texts[:, : len(prefix)] = np.frombuffer(prefix.encode("ascii"), dtype=np.uint8)
    texts[:, len(prefix) :] = _hexadecimal(numbers.astype(">u8"))
    offsets = np.arange(rows + 1, dtype=np.int32) * length
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(texts)]
    return pa.Array.from_buffers(pa.string(), rows, buffers)


def _hexadecimal(numbers: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.uint8]:
    """Returns one row of digits per big-endian number, by a table of the two digits of each byte."""
    octets = numbers.view(np.uint8).reshape(len(numbers), numbers.itemsize)
    return _digit_pairs()[octets].view(np.uint8)


@cache
def _digit_pairs() -> npt.NDArray[np.uint16]:
    """Returns the two digits of each byte, as they lie in memory."""
    return np.frombuffer(bytes(range(256)).hex().encode(), dtype=np.uint16)
