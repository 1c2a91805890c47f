"""A slice file is the one that was registered, or it is said in what it differs."""

from dataclasses import replace
from pathlib import Path

import pytest

from cdc_pipeline.apply.slice_check import check_content, check_slice_file
from cdc_pipeline.errors import SliceDamaged
from cdc_pipeline.metadata_store.rows import SliceRow
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.slice_file import ROW_GROUP_ROWS
from cdc_pipeline.steps import no_step
from tests.support.mutants import NARROW, RETYPED, TEXTS, slice_content
from tests.support.slice_rows import registered

EVERYTHING = 1 << 30
TYPES = (
    "boolean int2 int4 int8 float4 float8 numeric numeric(38,10) text bytea date timestamp timestamptz time interval"
    " uuid json jsonb inet int4range text[] int4[] numeric(10,2)[] timestamptz[] boolean[]"
)


class Unreadable(LocalObjectStore):
    """Whoever reads a whole object runs out of memory."""

    def get(self, key: str) -> bytes:
        raise MemoryError(key)


def refusal(row: SliceRow, content: bytes, schema: TableSchema = TEXTS, most_unpacked_bytes: int = EVERYTHING) -> str:
    with pytest.raises(SliceDamaged) as caught:
        check_content(row, content, schema, most_unpacked_bytes=most_unpacked_bytes)
    return str(caught.value)


def test_a_file_of_every_type_and_of_several_row_groups_is_accepted() -> None:
    columns = tuple(Column(name=f"c {name}", type=name) for name in TYPES.split())
    schema = TableSchema(columns=(*TEXTS.columns[:2], *columns), key=("id",))
    for rows in (1, 300):
        content = slice_content(schema, rows)
        check_content(registered(content, rows), content, schema, most_unpacked_bytes=EVERYTHING)
    content = slice_content(TEXTS, ROW_GROUP_ROWS + 1)
    check_content(registered(content, ROW_GROUP_ROWS + 1), content, TEXTS, most_unpacked_bytes=EVERYTHING)


def test_a_file_of_another_size_is_not_even_read(tmp_path: Path) -> None:
    content = slice_content(TEXTS, 3)
    row = registered(content, 3)
    store = Unreadable(tmp_path)
    store.put_if_absent(str(row.path), content + b" ")
    with pytest.raises(SliceDamaged, match=f"has {len(content) + 1} bytes; expected {len(content)} bytes"):
        check_slice_file(store, no_step, row, TEXTS, most_unpacked_bytes=EVERYTHING)


def test_a_file_that_is_gone_is_said_to_be_gone(tmp_path: Path) -> None:
    row = registered(b"content", 3)
    with pytest.raises(SliceDamaged, match="the object is gone"):
        check_slice_file(LocalObjectStore(tmp_path), no_step, row, TEXTS, most_unpacked_bytes=EVERYTHING)


def test_another_file_of_the_same_size_is_told_by_its_hash() -> None:
    content = slice_content(TEXTS, 3)
    row = registered(content, 3)
    words = refusal(row, bytes(len(content)))
    assert f"has {len(content)} bytes with the SHA-256" in words
    assert f"expected {len(content)} bytes, {row.sha256}" in words


def test_other_columns_types_and_rows_are_named() -> None:
    for schema, named in ((NARROW, "columns other than"), (RETYPED, "b'note'")):
        content = slice_content(schema, 3)
        assert named in refusal(registered(content, 3), content)
    content = slice_content(TEXTS, 3)
    assert "3 rows where 4 are registered" in refusal(replace(registered(content, 3), rows=4), content)


def test_a_file_that_unpacks_to_more_than_is_allowed_names_the_setting() -> None:
    content = slice_content(TEXTS, 500)
    assert "worker.unpacked_bytes allows 1000" in refusal(registered(content, 500), content, most_unpacked_bytes=1000)
