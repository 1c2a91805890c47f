"""Where the bytes of a Parquet file lie: footer, columns and pages, found and checked without unpacking a page.

Nothing native reads a byte of the file: a forged footer aborts the process of a reader that trusts it.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from cdc_pipeline.compact_thrift import CompactReader, Struct, number, structs

MAGIC = b"PAR1"
MOST_FOOTER_BYTES = 16 << 20
ZSTD = 6
REPETITION, REPEATED = 3, 2
_TAIL_BYTES = 8
_SCHEMA, _ROWS, _GROUPS, _DESCRIPTION = 2, 3, 4, 5
_GROUP_COLUMNS, _GROUP_ROWS = 1, 3
_OTHER_FILE, _COLUMN = 1, 3
_PHYSICAL_TYPE, _PATH, _CODEC, _COLUMN_VALUES, _UNPACKED, _PACKED, _FIRST_DATA, _FIRST_DICTIONARY = (
    1,
    3,
    4,
    5,
    6,
    7,
    9,
    11,
)
_NAME, _CHILDREN = 4, 5
_DATA, _DICTIONARY = 0, 2
_INNER = {_DATA: 5, _DICTIONARY: 7}
_KIND, _PAGE_UNPACKED, _PAGE_PACKED, _CHECKSUM = 1, 2, 3, 4
_VALUES, _ENCODING = 1, 2
_LEVELS = (3, 4)
_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8
_WHOLE = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChunk:
    """The pages of one column in one row group, as the footer tells them; `place` is None when they lie elsewhere."""

    name: str
    physical_type: int
    codec: int
    values: int
    packed_bytes: int
    unpacked_bytes: int
    place: int | None
    has_dictionary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """`schema`: its elements, from the root on, as Parquet numbers their fields. `group_rows`: one per row group."""

    start: int
    rows: int
    schema: tuple[Struct, ...]
    is_described: bool
    group_rows: tuple[int, ...]
    columns: tuple[tuple[ColumnChunk, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Its packed content lies from `start` to `end`; `unpacked_bytes` with its header, as a footer counts them."""

    is_dictionary: bool
    uses_dictionary: bool
    values: int
    unpacked_bytes: int
    start: int
    end: int


def read_footer(content: bytes) -> Footer:
    """Raises ValueError when the bytes are no whole Parquet file."""
    length = int.from_bytes(content[-_TAIL_BYTES : -len(MAGIC)], "little")
    start = len(content) - _TAIL_BYTES - length
    if content[: len(MAGIC)] != MAGIC or content[-len(MAGIC) :] != MAGIC or start < len(MAGIC):
        message = f"{len(content)} bytes that are no whole Parquet file"
        raise ValueError(message)
    if length > MOST_FOOTER_BYTES:
        message = f"a footer of {length} bytes where at most {MOST_FOOTER_BYTES} are allowed"
        raise ValueError(message)
    reader = CompactReader(content, start, start + length)
    fields = reader.struct()
    _expect("the footer", "ends at byte", reader.place, start + length)
    groups = structs(fields, _GROUPS)
    return Footer(
        start=start,
        rows=number(fields, _ROWS),
        schema=tuple(structs(fields, _SCHEMA)),
        is_described=_DESCRIPTION in fields,
        group_rows=tuple(number(group, _GROUP_ROWS) for group in groups),
        columns=tuple(tuple(map(_column, structs(group, _GROUP_COLUMNS))) for group in groups),
    )


def check_layout(content: bytes, footer: Footer) -> None:
    """Raises ValueError unless pages lie one behind the other from the first byte to the footer, whole and counted."""
    leaves = [
        (element.get(_PHYSICAL_TYPE), _text(element.get(_NAME)))
        for element in footer.schema
        if _CHILDREN not in element
    ]
    _expect("the file", "rows in its row groups:", sum(footer.group_rows), footer.rows)
    place = len(MAGIC)
    for columns in footer.columns:
        _expect("a row group", "has the columns", [(column.physical_type, column.name) for column in columns], leaves)
        for column in columns:
            _expect(column.name, "begins at byte", column.place, place)
            _expect(column.name, "has the codec", column.codec, ZSTD)
            _check_column(content, column, place, footer.start)
            place += column.packed_bytes
    _expect("the last page", "ends at byte", place, footer.start)


def pages(content: bytes, place: int, end: int) -> Iterator[Page]:
    """Those that fill the bytes from `place` to `end`, with their headers. Raises ValueError for the first bad one."""
    while place < end:
        page = _page(content, place, end)
        yield page
        place = page.end


def _page(content: bytes, place: int, end: int) -> Page:
    reader = CompactReader(content, place, end)
    header = reader.struct()
    kind, start = number(header, _KIND), reader.place
    inner = header.get(_INNER.get(kind, 0))
    packed, unpacked = number(header, _PAGE_PACKED), number(header, _PAGE_UNPACKED)
    if not isinstance(inner, dict) or unpacked < 0:
        message = f"a page at byte {place} of a kind that no slice file has"
        raise ValueError(message)
    checksum = number(header, _CHECKSUM) & _WHOLE
    if not 0 <= packed <= end - start or zlib.crc32(memoryview(content)[start : start + packed]) != checksum:
        message = f"a page at byte {place} whose content has another checksum"
        raise ValueError(message)
    encoding = number(inner, _ENCODING)
    levels = {inner.get(field) for field in _LEVELS} if kind == _DATA else {_RLE}
    if levels != {_RLE} or encoding not in (
        (_PLAIN, _RLE_DICTIONARY) if kind == _DATA else (_PLAIN, _PLAIN_DICTIONARY)
    ):
        message = f"a page at byte {place} in an encoding that no slice file has"
        raise ValueError(message)
    return Page(
        is_dictionary=kind == _DICTIONARY,
        uses_dictionary=kind == _DATA and encoding == _RLE_DICTIONARY,
        values=number(inner, _VALUES),
        unpacked_bytes=unpacked + start - place,
        start=start,
        end=start + packed,
    )


def _check_column(content: bytes, column: ColumnChunk, place: int, most: int) -> None:
    end = place + column.packed_bytes
    if not place < end <= most:
        message = f"the column {column.name}, which reaches from byte {place} to {end} of {most}"
        raise ValueError(message)
    values = unpacked = 0
    for number_, page in enumerate(pages(content, place, end)):
        _expect(column.name, "begins with a dictionary:", page.is_dictionary, column.has_dictionary and number_ == 0)
        if page.uses_dictionary and not column.has_dictionary:
            _expect(column.name, "has a dictionary:", found=True, expected=False)
        values += 0 if page.is_dictionary else page.values
        unpacked += page.unpacked_bytes
    _expect(column.name, "values in its pages:", values, column.values)
    _expect(column.name, "unpacked bytes in its pages:", unpacked, column.unpacked_bytes)


def _column(chunk: Struct) -> ColumnChunk:
    fields = chunk.get(_COLUMN)
    if not isinstance(fields, dict) or _OTHER_FILE in chunk:
        message = "a column whose pages lie in another file"
        raise ValueError(message)
    path, first = fields.get(_PATH), fields.get(_FIRST_DICTIONARY)
    return ColumnChunk(
        name=_text(path[-1]) if isinstance(path, list) and path else "",
        physical_type=number(fields, _PHYSICAL_TYPE),
        codec=number(fields, _CODEC),
        values=number(fields, _COLUMN_VALUES),
        packed_bytes=number(fields, _PACKED),
        unpacked_bytes=number(fields, _UNPACKED),
        place=number(fields, _FIRST_DATA if first is None else _FIRST_DICTIONARY),
        has_dictionary=first is not None,
    )


def _text(found: object) -> str:
    return found.decode(errors="replace") if isinstance(found, bytes) else ""


def _expect(name: str, what: str, found: object, expected: object) -> None:
    if found != expected:
        message = f"{name!r:.120}: {what} {found!r:.500} where there should be {expected!r:.500}"
        raise ValueError(message)
