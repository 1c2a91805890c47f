"""Decodes the row images of the binary log into the texts that a SELECT would give, column by column. Pure.

mysql-replication reads the log's protocol and the description of each table. Its values are not used, since they do
not show everything that a column can hold: a zero date becomes None like NULL, a zero TIMESTAMP becomes 1970, YEAR 0000
becomes 1900, a SET loses its order, a BINARY its last zeros.

The formats are those of MySQL's `Field::pack` and of the packed temporal types (`my_time.cc`, `decimal.c`).
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress

from pymysqlreplication.constants import FIELD_TYPE

from cdc_pipeline.errors import DecodeError
from cdc_pipeline.sources.mysql.json_text import json_text
from cdc_pipeline.sources.mysql.packed_values import (
    Reader,
    check_end,
    datetime_reader,
    decimal_reader,
    read_date,
    read_year,
    time_reader,
    timestamp_reader,
)
from cdc_pipeline.types.mysql import binary_text, bit_text, float_text
from cdc_pipeline.types.mysql_charsets import decoded

Texts = list[bytes | None]
_SHORT_LENGTH = 255
_INTEGERS = {
    FIELD_TYPE.TINY: 1,
    FIELD_TYPE.SHORT: 2,
    FIELD_TYPE.INT24: 3,
    FIELD_TYPE.LONG: 4,
    FIELD_TYPE.LONGLONG: 8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageColumn:
    """A column as the log describes it, with what only the catalogue has.

    `type`: the log's type code. `length`: of a string, its longest in bytes; of a blob, the bytes of its length; of an
    enum or set, the bytes of its number; of a bit column, its bits. `fixed`: bytes to which zeros pad a BINARY.
    `encoding`: the codec of the text's character set; None for UTF-8, which is taken as it is. `labels`: of an enum or
    set, in UTF-8. `is_hidden`: it has a place in the log, and is left out of the images.
    """

    name: str
    type: int
    length: int = 0
    decimals: int = 0
    unsigned: bool = False
    binary: bool = False
    fixed: int = 0
    encoding: str | None = None
    labels: tuple[bytes, ...] = ()
    is_hidden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RowImage:
    """One image of a row: the texts of its columns, NULL as None. `present`: the columns that it has."""

    texts: Texts
    present: tuple[bool, ...]


class RowDecoder:
    """Decodes the images of rows with these columns."""

    def __init__(self, columns: Sequence[ImageColumn]) -> None:
        self.columns = tuple(columns)
        self._readers = [_reader(column) for column in columns]
        self._shown = [not column.is_hidden for column in columns]

    def images(self, octets: bytes, bitmaps: Sequence[bytes]) -> list[tuple[RowImage, ...]]:
        """Returns the rows of one event: one image per bitmap of present columns, which are one or two.

        Raises DecodeError for bytes that are not rows of these columns.
        """
        present = [self._present(bitmap) for bitmap in bitmaps]
        rows, at = [], 0
        if octets and not any(map(any, present)):
            raise _damaged("it has no column")
        try:
            while at < len(octets):
                images = []
                for shown in present:
                    image, at = self._image(octets, at, shown)
                    images.append(image)
                rows.append(tuple(images))
        except (IndexError, struct.error, ValueError, OverflowError) as error:
            raise _damaged(str(error)) from error
        if at != len(octets):
            raise _damaged(f"its last row ends {at - len(octets)} bytes behind the event")
        return rows

    def _present(self, bitmap: bytes) -> tuple[bool, ...]:
        return tuple(bool(bitmap[index >> 3] >> (index & 7) & 1) for index in range(len(self._readers)))

    def _image(self, octets: bytes, at: int, present: tuple[bool, ...]) -> tuple[RowImage, int]:
        nulls, bit = at, 0
        at += (sum(present) + 7) // 8
        texts: Texts = []
        for reader, here in zip(self._readers, present, strict=True):
            text = None
            if here:
                if not octets[nulls + (bit >> 3)] >> (bit & 7) & 1:
                    text, at = reader(octets, at)
                bit += 1
            texts.append(text)
        if not all(self._shown):
            texts, present = list(compress(texts, self._shown)), tuple(compress(present, self._shown))
        return RowImage(texts=texts, present=present), at


def _reader(column: ImageColumn) -> Reader:
    """Returns the function that reads one value of the column. Raises DecodeError for a type without a rule."""
    kind = column.type
    if kind in _INTEGERS:
        return _integer(_INTEGERS[kind], unsigned=column.unsigned)
    if kind in (FIELD_TYPE.VARCHAR, FIELD_TYPE.VAR_STRING, FIELD_TYPE.STRING):
        return _string(column, 1 if column.length <= _SHORT_LENGTH else 2)
    if kind in (FIELD_TYPE.BLOB, FIELD_TYPE.GEOMETRY):
        return _string(column, column.length)
    if kind in (FIELD_TYPE.ENUM, FIELD_TYPE.SET):
        return _listed(column)
    if kind == FIELD_TYPE.JSON:
        return _with_length(column.length, json_text)
    simple: dict[int, Callable[[ImageColumn], Reader]] = {
        FIELD_TYPE.FLOAT: lambda _: _floating("<f", 4),
        FIELD_TYPE.DOUBLE: lambda _: _floating("<d", 8),
        FIELD_TYPE.NEWDECIMAL: lambda found: decimal_reader(found.length, found.decimals),
        FIELD_TYPE.BIT: lambda found: _bit(found.length),
        FIELD_TYPE.YEAR: lambda _: read_year,
        FIELD_TYPE.DATE: lambda _: read_date,
        FIELD_TYPE.NEWDATE: lambda _: read_date,
        FIELD_TYPE.TIME2: lambda found: time_reader(found.decimals),
        FIELD_TYPE.DATETIME2: lambda found: datetime_reader(found.decimals),
        FIELD_TYPE.TIMESTAMP2: lambda found: timestamp_reader(found.decimals),
    }
    if kind not in simple:
        raise DecodeError(
            f"the column {column.name} has the type number {kind} in the log",
            expected="a type of MariaDB 10.5 or MySQL 8.0, or newer",
            remedy="rewrite a table of an older version by ALTER TABLE … FORCE, then run cdc snapshot on it",
        )
    return simple[kind](column)


def _integer(size: int, *, unsigned: bool) -> Reader:
    def read(octets: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        check_end(octets, end)
        return b"%d" % int.from_bytes(octets[at:end], "little", signed=not unsigned), end

    return read


def _floating(layout: str, size: int) -> Reader:
    unpack = struct.Struct(layout).unpack_from
    return lambda octets, at: (float_text(unpack(octets, at)[0]), at + size)


def _string(column: ImageColumn, length_bytes: int) -> Reader:
    return _with_length(length_bytes, _finish(column))


def _with_length(length_bytes: int, finish: Callable[[bytes], bytes]) -> Reader:
    """Reads bytes behind a number that says how many they are."""

    def read(octets: bytes, at: int) -> tuple[bytes, int]:
        start = at + length_bytes
        end = start + int.from_bytes(octets[at:start], "little")
        check_end(octets, end)
        return finish(octets[start:end]), end

    return read


def _finish(column: ImageColumn) -> Callable[[bytes], bytes]:
    if column.binary:
        return lambda value: binary_text(value.ljust(column.fixed, b"\0"))
    encoding = column.encoding
    if encoding is None:
        return lambda value: value
    return lambda value: _recoded(value, encoding)


_NEVER_IN_UTF8 = b"\xff"


def _recoded(value: bytes, encoding: str) -> bytes:
    """Returns the text in UTF-8. Bytes that are no text become bytes that are refused later, as invalid UTF-8."""
    try:
        return decoded(value, encoding).encode()
    except UnicodeDecodeError:
        return _NEVER_IN_UTF8 + value


def _listed(column: ImageColumn) -> Reader:
    labels, size = column.labels, column.length

    def read(octets: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        check_end(octets, end)
        if column.is_hidden:  # its labels are not known
            return b"", end
        number = int.from_bytes(octets[at:end], "little")
        if column.type == FIELD_TYPE.ENUM:
            return labels[number - 1] if number else b"", end
        if number >> len(labels):
            raise IndexError(column.name)
        return b",".join(label for index, label in enumerate(labels) if number >> index & 1), end

    return read


def _bit(bits: int) -> Reader:
    size = (bits + 7) // 8
    return lambda octets, at: (bit_text(int.from_bytes(octets[at : at + size]), bits), at + size)


def _damaged(why: str) -> DecodeError:
    return DecodeError(
        f"an event of rows cannot be decoded: {why}",
        expected="rows with the columns that the log describes before them",
        remedy="check the binary log with mariadb-binlog or mysqlbinlog, and --verify-binlog-checksum",
    )
