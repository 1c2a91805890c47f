"""Reads Avro files block by block. A record with a value that Python cannot hold stands for itself alone."""

import io
import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO
from zlib import crc32

import fastavro
import fastavro.read
import pyarrow as pa

from cdc_pipeline.sources.files.record_blocks import UNREAD, WHY, ObjectBlock, RecordBlock

_BLOCK_BYTES = 2 << 20
_ESCAPED = "surrogateescape"
"""A byte of a text that is not UTF-8 becomes half a surrogate pair, which no type of the lake holds."""
_NOT_CONVERTED = (ValueError, ArithmeticError)
"""What fastavro raises for a date after the year 9999, a time of 24:00, or a UUID that is none."""


_CHECK_BYTES = 4
_SIZE_BYTES, _SIZE_BITS = 5, 7


def _snappy(file: BinaryIO) -> BinaryIO:
    """Decompresses a block. Its size is in front, the lowest seven bits first; its checksum is behind."""
    octets = _block_octets(file)
    content, check = octets[:-_CHECK_BYTES], octets[-_CHECK_BYTES:]
    size = 0
    for number, octet in enumerate(content[:_SIZE_BYTES]):
        size |= (octet & 0x7F) << number * _SIZE_BITS
        if not octet & 0x80:
            break
    plain: bytes = pa.Codec("snappy").decompress(content, size, asbytes=True)
    if crc32(plain) != int.from_bytes(check):
        message = "a block has another checksum than the file says"
        raise ValueError(message)
    return io.BytesIO(plain)


def _zstandard(file: BinaryIO) -> BinaryIO:
    with pa.CompressedInputStream(pa.BufferReader(_block_octets(file)), "zstd") as plain:
        return io.BytesIO(plain.read())


def _block_octets(file: BinaryIO) -> bytes:
    octets: Any = fastavro.schemaless_reader(file, {"type": "bytes"}, None)
    return bytes(octets)


fastavro.read.BLOCK_READERS.update(snappy=_snappy, zstandard=_zstandard)
"""fastavro has them only beside packages of their own."""


def avro_blocks(open_file: Callable[[], BinaryIO], layout: object) -> Iterator[RecordBlock]:
    """Reads the whole file once, to check it, and a second time if it has more than one block."""
    del layout
    blocks = _read(open_file)
    first, further = next(blocks), sum(1 for _ in blocks)
    return _read(open_file) if further else iter((first,))


def _read(open_file: Callable[[], BinaryIO]) -> Iterator[RecordBlock]:
    """Yields at least one block."""
    with open_file() as file:
        records, size = list[object](), 0
        reader = fastavro.block_reader(file, handle_unicode_errors=_ESCAPED)
        for block in reader:
            records += _records(block, reader.metadata)
            size += int(block.size)
            if size >= _BLOCK_BYTES:
                yield ObjectBlock(records=records, size_bytes=size)
                records, size = [], 0
        file.read(1)  # gzip raises EOFError again, which fastavro took for the end of the file
        yield ObjectBlock(records=records, size_bytes=size)


def _records(block: Any, metadata: dict[str, str]) -> list[object]:
    try:
        return list(block)
    except _NOT_CONVERTED:
        pass
    schema = json.loads(metadata["avro.schema"])
    schemas = fastavro.parse_schema(schema), fastavro.parse_schema(_without_logical_types(schema))
    block.bytes_.seek(0)
    return [_record(block.bytes_, *schemas) for _ in range(block.num_records)]


def _record(octets: BinaryIO, schema: Any, plain: Any) -> object:
    """Reads one record; as it is in the file, and marked as unread, if one of its values cannot be converted."""
    place = octets.tell()
    try:
        return fastavro.schemaless_reader(octets, schema, None, handle_unicode_errors=_ESCAPED)
    except _NOT_CONVERTED as error:
        octets.seek(place)
        record = fastavro.schemaless_reader(octets, plain, None, handle_unicode_errors=_ESCAPED)
        return {UNREAD: record, WHY: f"has a value that cannot be read: {error}"}


def _without_logical_types(schema: Any) -> Any:
    match schema:
        case dict():
            return {key: _without_logical_types(part) for key, part in schema.items() if key != "logicalType"}
        case list():
            return [_without_logical_types(part) for part in schema]
    return schema
