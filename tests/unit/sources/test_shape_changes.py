"""What a difference between two shapes means: for the type of a column, and for a snapshot that is older than it."""

from dataclasses import replace

import pytest

from cdc_pipeline.sources.postgres.shape import ShapeColumn, SourceShape
from cdc_pipeline.sources.postgres.shape_changes import Followed, Retaken, Unchanged, compare_shapes, why_copy_differs


def of_type(type_oid: int, type_name: str) -> SourceShape:
    column = ShapeColumn(
        number=1,
        name="value",
        type_oid=type_oid,
        modifier=-1,
        changed_by="1",
        missing=None,
        generated=None,
        type=type_name,
    )
    return SourceShape(oid=1, file_number=1, last_number=1, columns=(column,))


@pytest.mark.parametrize(
    ("before", "now", "answer"),
    [
        ("varchar(10)", "text", Followed),
        ("numeric(10,2)", "numeric(12,2)", Followed),
        ("timestamp", "timestamptz", Retaken),
        ("text(varchar(10))", "text(text)", Followed),
        ("text(varchar)", "text(text)", Followed),
        ("text(numeric(10,2))", "text(numeric(12,2))", Followed),
        ("text(timestamp)", "text(timestamptz)", Retaken),
        ("text(cidr)", "text(inet)", Retaken),
        ("text(timestamp)", "text", Retaken),
    ],
)
def test_a_type_changes_without_a_copy_if_it_prints_each_value_as_before(
    before: str, now: str, answer: type[Followed | Retaken]
) -> None:
    assert type(compare_shapes(of_type(1, before), of_type(2, now))) is answer


ID = of_type(23, "int4").columns[0]
BEFORE = SourceShape(
    oid=1, file_number=1, last_number=2, columns=(replace(ID, name="id"), replace(ID, number=2, name="size"))
)


def with_names(*names: str) -> SourceShape:
    columns = zip(BEFORE.columns, names, strict=True)
    return replace(BEFORE, columns=tuple(replace(column, name=name, changed_by="2") for column, name in columns))


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (replace(BEFORE, file_number=2), "has a new file"),
        (with_names("size", "id"), "'id' is now called 'size'"),
        (with_names("id", "amount"), "'size' is now called 'amount'"),
        (replace(with_names("id", "size"), file_number=2), "rewritten together with its column 'id'"),
    ],
)
def test_an_export_fails_if_a_page_or_a_name_may_show_something_else_than_at_the_cutoff(
    now: SourceShape, words: str
) -> None:
    assert words in str(why_copy_differs(BEFORE, now, needs_file=True))


def test_an_export_goes_on_beside_a_new_column() -> None:
    size = replace(BEFORE.columns[1], number=3, name="more", changed_by="2")
    now = replace(BEFORE, last_number=3, columns=(*BEFORE.columns, size))
    assert why_copy_differs(BEFORE, BEFORE, needs_file=True) is None
    assert why_copy_differs(BEFORE, now, needs_file=True) is None


def test_an_export_by_one_query_goes_on_beside_a_new_file() -> None:
    assert why_copy_differs(BEFORE, replace(BEFORE, file_number=2), needs_file=False) is None


def test_a_partitioned_table_without_partitions_is_the_one_that_earlier_builds_described_otherwise() -> None:
    found = compare_shapes(replace(BEFORE, leaves=None), replace(BEFORE, leaves={}))
    assert isinstance(found, Unchanged)
    assert found.shape.leaves == {}
