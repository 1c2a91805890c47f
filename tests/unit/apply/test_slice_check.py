"""A slice file is the one that was registered, or it is said in what it differs."""

from pathlib import Path
from random import Random

import pytest

from cdc_pipeline.apply.claim_work import check_content, check_slice_file, expected_columns
from cdc_pipeline.errors import SliceDamaged
from cdc_pipeline.metadata_store.ledger.records import RegisteredSlice
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.slice_file import ROW_GROUP_ROWS
from cdc_pipeline.steps import no_step
from tests.support.mutants import (
    MUTATIONS,
    NARROW,
    RETYPED,
    TEXTS,
    Mutation,
    bomb,
    foreign_files,
    new_world,
    slice_content,
)
from tests.support.slice_rows import registered

EVERYTHING = 1 << 30
MUTANTS = 400
"""Of each mutation."""
TYPES = (
    "boolean int2 int4 int8 float4 float8 numeric numeric(38,10) text bytea date timestamp timestamptz time interval"
    " uuid json jsonb inet int4range text[] int4[] numeric(10,2)[] timestamptz[] boolean[]"
)


class Unreadable(LocalObjectStore):
    """Whoever reads a whole object runs out of memory."""

    def get(self, key: str) -> bytes:
        raise MemoryError(key)


def refusal(
    row: RegisteredSlice, content: bytes, schema: TableSchema = TEXTS, most_unpacked_bytes: int = EVERYTHING
) -> str:
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


def test_the_columns_that_a_schema_gives_are_found_once_however_many_slices_have_it() -> None:
    expected_columns.cache_clear()
    for schema in (TEXTS, NARROW, TEXTS, NARROW):
        content = slice_content(schema, 3)
        check_content(registered(content, 3), content, schema, most_unpacked_bytes=EVERYTHING)
    assert expected_columns.cache_info().misses == 2


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


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_no_mutant_passes_as_the_slice_that_was_registered(mutation: Mutation) -> None:
    world = new_world()
    for number in range(MUTANTS):
        random = Random(f"{mutation.__name__} {number}")
        of = random.choice(world.originals)
        mutant = mutation(random, of, world)
        assert f"expected {len(of)} bytes, " in refusal(registered(of, 1), mutant), number


def test_other_columns_and_types_are_named() -> None:
    for schema, named in ((NARROW, "in another order"), (RETYPED, "('note', 'int32')")):
        content = slice_content(schema, 3)
        assert named in refusal(registered(content, 3), content)
    for content in foreign_files():
        assert "columns other than those of the schema" in refusal(registered(content, 3), content)


def test_other_rows_than_registered_are_named() -> None:
    content = slice_content(TEXTS, 3)
    assert "has 3 rows; expected 4 rows" in refusal(registered(content, 4), content)


def test_registered_bytes_that_are_no_parquet_file_are_named() -> None:
    for content in (b"", b'{"id": 1}\n', b"PAR1" + bytes(4) + b"PAR1", bytes(1000)):
        assert "no whole Parquet file" in refusal(registered(content, 3), content)


def test_a_file_that_unpacks_to_more_than_is_allowed_names_the_setting() -> None:
    content = bomb(3, 1 << 20)
    assert len(content) < 10_000
    assert "expected at most 100000 (worker.unpacked_bytes)" in refusal(
        registered(content, 3), content, most_unpacked_bytes=100_000
    )
