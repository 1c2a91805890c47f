"""Deletion vectors are written and read as Delta's protocol has them."""

from pathlib import Path

import pytest
from pyroaring import BitMap64

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.deletion_vectors import read_vector, vector_file, vector_path, z85_decode, z85_encode
from cdc_pipeline.object_store.local import LocalObjectStore

TABLE = "datalake/shop/public/people"


def test_an_inline_vector_is_read(tmp_path: Path) -> None:
    rows = BitMap64([3, 4, 7, 11, 18, 29])
    _, content, descriptors = vector_file({"a": rows})
    size = descriptors["a"]["sizeInBytes"]
    data = content[5 : 5 + size] + bytes(-size % 4)
    inline = {"storageType": "i", "pathOrInlineDv": z85_encode(data), "sizeInBytes": size, "cardinality": 6}
    assert read_vector(LocalObjectStore(tmp_path), TABLE, inline) == rows


def test_a_path_of_the_protocol_names_its_file() -> None:
    assert vector_path("ab^-aqEH.-t@S}K{vb[*k^") == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def test_a_file_has_the_vectors_of_several_data_files(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    rows = {"a": BitMap64([0, 5, 1 << 33]), "b": BitMap64(range(100_000))}
    path, content, descriptors = vector_file(rows)
    store.put_if_absent(f"{TABLE}/{path}", content)
    assert {name: read_vector(store, TABLE, descriptor) for name, descriptor in descriptors.items()} == rows
    assert [descriptors[name]["cardinality"] for name in "ab"] == [3, 100_000]
    assert read_vector(store, TABLE, None) == BitMap64()


def test_damaged_bytes_are_refused(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    path, content, descriptors = vector_file({"a": BitMap64([1, 2, 3])})
    store.put_if_absent(f"{TABLE}/{path}", content[:-6] + b"\x07" + content[-5:])
    with pytest.raises(LakeError, match="damaged"):
        read_vector(store, TABLE, descriptors["a"])
    with pytest.raises(LakeError, match="is at"):
        read_vector(store, TABLE, {**descriptors["a"], "storageType": "p"})


def test_base_85_comes_back() -> None:
    content = bytes(range(256))
    assert z85_decode(z85_encode(content)) == content
    assert z85_encode(bytes.fromhex("864fd26fb559f75b")) == "HelloWorld"
