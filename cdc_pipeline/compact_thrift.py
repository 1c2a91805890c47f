"""Thrift's compact protocol, as far as the headers of Parquet need it: bytes -> numbers, texts, lists and structs."""

from typing import Any

Struct = dict[int, Any]
_TRUE, _FALSE, _BYTE, _BINARY, _LIST, _STRUCT = 1, 2, 3, 8, 9, 12
_NUMBERS = (4, 5, 6)
_LONG_LIST = 15
_MORE, _LONGEST_NUMBER = 128, 70
_DEEPEST = 8


class CompactReader:
    """Reads on from `place`, never behind `end`. Whatever is not this protocol raises ValueError.

    No text and no list is longer than the bytes that are left.
    """

    def __init__(self, content: bytes, place: int, end: int) -> None:
        self._content = content
        self._end = min(end, len(content))
        self.place = place

    def struct(self, depth: int = 0) -> Struct:
        """Field id -> number, truth, bytes, list or struct."""
        fields: Struct = {}
        last = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            last = last + step if step else self._signed()
            fields[last] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _NUMBERS:
            return self._signed()
        if kind == _BINARY:
            return self._bytes(self._unsigned())
        if kind == _STRUCT and depth < _DEEPEST:
            return self.struct(depth + 1)
        if kind == _LIST and depth < _DEEPEST:
            return self._list(depth + 1)
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        raise self._wrong("nothing that a header holds")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        size = head >> 4 if head >> 4 < _LONG_LIST else self._unsigned()
        if size > self._end - self.place:
            raise self._wrong(f"a list of {size}")
        return [self._value(head & 15, depth) for _ in range(size)]

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)

    def _unsigned(self) -> int:
        number = shift = 0
        while shift < _LONGEST_NUMBER:
            byte = self._byte()
            number |= (byte & ~_MORE) << shift
            if not byte & _MORE:
                return number
            shift += 7
        raise self._wrong("a number without an end")

    def _byte(self) -> int:
        if self.place >= self._end:
            raise self._wrong("the end")
        self.place += 1
        return self._content[self.place - 1]

    def _bytes(self, length: int) -> bytes:
        if length > self._end - self.place:
            raise self._wrong(f"{length} bytes")
        self.place += length
        return self._content[self.place - length : self.place]

    def _wrong(self, found: str) -> ValueError:
        return ValueError(f"{found} at byte {self.place}, in a header that ends at byte {self._end}")


def number(fields: Struct, field: int) -> int:
    """Raises ValueError when it is no number."""
    found = fields.get(field)
    if not isinstance(found, int):
        raise _no("number", field)
    return found


def structs(fields: Struct, field: int) -> list[Struct]:
    """Raises ValueError when it is no list of structs."""
    found = fields.get(field)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise _no("list of structs", field)
    return found


def _no(what: str, field: int) -> ValueError:
    return ValueError(f"no {what} in field {field} of a header")
