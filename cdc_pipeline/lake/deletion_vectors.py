"""Deletion vectors in the format of Delta's PROTOCOL.md: the indexes of the deleted rows of a data file."""

import base64
import struct
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyroaring import BitMap64

from cdc_pipeline.errors import LakeError, ObjectMissing, damaged_file
from cdc_pipeline.lake.delta_log import Action
from cdc_pipeline.object_store import ObjectStore

_FORMAT_VERSION = b"\x01"
_MAGIC = 1_681_511_377
IN_TABLE, _INLINE = "u", "i"
_UUID_LETTERS = 20
"""The length of a UUID in base 85. Text before it is a folder."""
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_OF_PYTHON = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_OF_PYTHON, _Z85), bytes.maketrans(_Z85, _OF_PYTHON)


_MOST_HELD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorObjects:
    """Vector files of a store, kept in `held` for one claim: the vectors of all files that a claim marked are in one.

    At most _MOST_HELD_BYTES are kept, or a single larger file; those that were not used for the longest time go first.
    """

    store: ObjectStore
    held: OrderedDict[str, bytes]

    def get(self, key: str) -> bytes:
        content = self.held.pop(key, None)
        self.held[key] = self.store.get(key) if content is None else content
        while len(self.held) > 1 and sum(map(len, self.held.values())) > _MOST_HELD_BYTES:
            self.held.popitem(last=False)
        return self.held[key]


def read_vector(store: ObjectStore | VectorObjects, table_key: str, descriptor: Action | None) -> BitMap64:
    """Returns the deleted rows that the log's descriptor names; empty for None.

    Raises LakeError if their file is missing or damaged.
    """
    if descriptor is None:
        return BitMap64()
    kind, reference = descriptor["storageType"], descriptor["pathOrInlineDv"]
    if kind == _INLINE:
        return _bitmap(z85_decode(reference)[: descriptor["sizeInBytes"]], "an inline vector")
    if kind != IN_TABLE:
        raise LakeError(f"a deletion vector of {table_key} is at {reference}", expected="one in the table's own folder")
    key = f"{table_key}/{vector_path(reference)}"
    try:
        content = store.get(key)
    except ObjectMissing as error:
        raise damaged_file(f"the deletion vector {key} is missing") from error
    start, size = descriptor.get("offset") or 0, descriptor["sizeInBytes"]
    data = content[start + 4 : start + 4 + size]
    if content[start : start + 8 + size] != _framed(data):
        raise damaged_file(f"the deletion vector at byte {start} of {key} is damaged")
    return _bitmap(data, key)


def read_vectors(
    store: ObjectStore | VectorObjects, table_key: str, files: Mapping[str, Action]
) -> Iterator[tuple[str, BitMap64]]:
    """Yields the deleted rows of each of these files; see `read_vector`. `files`: path -> `add` action.

    The order is that of the vector files, because those of many claims are not kept in memory together.
    """
    for path in sorted(files, key=lambda path: vector_reference(files[path])):
        yield path, read_vector(store, table_key, files[path].get("deletionVector"))


def vector_reference(file: Action) -> str:
    """Returns what data files have in common whose vectors are in one file; "" without a vector."""
    reference: str = (file.get("deletionVector") or {}).get("pathOrInlineDv", "")
    return reference


def vector_file(vectors: Mapping[str, BitMap64]) -> tuple[str, bytes, dict[str, Action]]:
    """Encodes the vectors of several data files as one file.

    Returns its path in the table, its bytes, and a descriptor per data file.
    """
    name = uuid.uuid4()
    reference = z85_encode(name.bytes)
    content = bytearray(_FORMAT_VERSION)
    descriptors = {}
    for path, rows in vectors.items():
        data = struct.pack("<I", _MAGIC) + rows.serialize()
        descriptors[path] = {
            "storageType": IN_TABLE,
            "pathOrInlineDv": reference,
            "offset": len(content),
            "sizeInBytes": len(data),
            "cardinality": len(rows),
        }
        content += _framed(data)
    return vector_path(reference), bytes(content), descriptors


def vector_path(reference: str) -> str:
    """Returns the path in the table of the vector file that a descriptor names."""
    folder, name = reference[:-_UUID_LETTERS], uuid.UUID(bytes=z85_decode(reference[-_UUID_LETTERS:]))
    return f"{folder}/deletion_vector_{name}.bin" if folder else f"deletion_vector_{name}.bin"


def z85_encode(content: bytes) -> str:
    """Encodes bytes as Z85 text. The length of `content` is a multiple of four."""
    return base64.b85encode(content).translate(_TO_Z85).decode()


def z85_decode(text: str) -> bytes:
    return base64.b85decode(text.encode().translate(_FROM_Z85))


def _framed(data: bytes) -> bytes:
    """Returns the bytes of a vector in its file: between its size and its checksum."""
    return struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))


def _bitmap(data: bytes, where: str) -> BitMap64:
    (magic,) = struct.unpack_from("<I", data)
    if magic != _MAGIC:
        raise LakeError(f"the deletion vector in {where} has the magic number {magic}", expected=f"{_MAGIC}")
    return BitMap64.deserialize(data[4:])
