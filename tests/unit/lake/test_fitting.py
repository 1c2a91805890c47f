"""What a lake table becomes when its source changes, and where a claim has to end: decided without any lake."""

from dataclasses import replace

import pytest

from cdc_pipeline.apply.next_move import first_with_same_columns
from cdc_pipeline.lake.fitting import fitted, in_one_claim
from cdc_pipeline.lake.shape import ShapeChange, shape_of, shape_of_source
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.types import wider
from tests.support.shapes import columns
from tests.support.slice_rows import slice_row

FIRST = columns("id int8 1", "a text 2", "b int4 3")
UNNUMBERED = TableSchema(columns=tuple(replace(column, number=None) for column in FIRST.columns), key=("id",))


def change(*described: str, keeps_dropped: bool = True) -> ShapeChange:
    return fitted(shape_of_source(FIRST), columns(*described), keeps_dropped=keeps_dropped)


def test_the_same_columns_change_nothing_in_whatever_order() -> None:
    assert fitted(shape_of_source(FIRST), FIRST).is_none
    assert change("b int4 3", "a text 2", "id int8 1").is_none
    assert fitted(shape_of_source(UNNUMBERED), UNNUMBERED).is_none


def test_what_the_table_keeps_of_its_shape_reads_as_it_was_written() -> None:
    shape = change("id int8 1", "b text 2", "c int8 4 7", "a text 5", keeps_dropped=True).after
    fields = [(column.name, column.type) for column in shape.columns]
    assert shape_of([*fields, ("_cdc_version", "STRING")], shape.properties()) == shape
    assert {column.name: column.number for column in shape.columns} == {
        "id": 1,
        "b": 2,
        "c": 4,
        "a": 5,
        "_cdc_dropped_3_b": 3,
    }


def test_a_table_without_numbers_learns_them_by_its_names() -> None:
    learned = fitted(shape_of_source(UNNUMBERED), FIRST)
    assert (learned.is_none, learned.rewrites) == (False, False)
    assert learned.after == shape_of_source(FIRST)


def test_columns_without_numbers_are_added_and_never_dropped_or_renamed() -> None:
    other = TableSchema(columns=(UNNUMBERED.columns[0], Column(name="c", type="text")), key=("id",))
    found = fitted(shape_of_source(UNNUMBERED), other)
    assert (found.after.shown, found.rewrites, found.words()) == (("id", "c", "a", "b"), False, {"added": ["c"]})
    assert fitted(shape_of_source(FIRST), other).after.shown == ("id", "c", "a", "b")


@pytest.mark.parametrize(
    ("described", "words", "rewrites"),
    [
        (("id int8 1", "a text 2", "b int4 3", "c text 4"), {"added": ["c"]}, False),
        (("id int8 1", "a text 2", "b int4 3", "c text 4 x"), {"added": ["c"]}, True),
        (("id int8 1", "c text 2", "b int4 3"), {"renamed": {"a": "c"}}, True),
        (("id int8 1", "a text 2", "b int8 3"), {"widened": {"b": "BIGINT"}}, True),
        (("id int8 1", "b int4 3"), {"dropped": ["a"]}, False),
        (
            ("id int8 1", "b int4 3", "a text 4"),
            {"added": ["a"], "renamed": {"a": "_cdc_dropped_2_a"}, "dropped": ["_cdc_dropped_2_a"]},
            True,
        ),
        (
            ("id int8 1", "b int4 3", "A text 4"),
            {"added": ["A"], "renamed": {"a": "_cdc_dropped_2_a"}, "dropped": ["_cdc_dropped_2_a"]},
            True,
        ),
        (("id int8 1", "a int4 3", "b text 2"), {"renamed": {"b": "a", "a": "b"}}, True),
    ],
)
def test_only_what_old_rows_are_to_show_otherwise_rewrites_them(
    described: tuple[str, ...], words: dict[str, object], *, rewrites: bool
) -> None:
    found = change(*described)
    assert (found.words(), found.rewrites, found.problems) == (words, rewrites, ())


def test_a_dropped_column_leaves_the_lake_where_it_is_to() -> None:
    found = change("id int8 1", "b int4 3", keeps_dropped=False)
    assert (found.after.names, found.removed, found.rewrites) == (("id", "b"), ("a",), True)
    again = fitted(found.after, columns("id int8 1", "b int4 3"), keeps_dropped=False)
    assert again.is_none


@pytest.mark.parametrize(
    ("described", "problem"),
    [
        (("id int8 1", "a int4 2", "b int4 3"), "'a' is int4"),
        (("id int8 1", "a text 2", "b int2 3"), "'b' is int2"),
        (("a text 2", "b int4 3"), "the id column 'id' is gone"),
        (("id int8 1", "a text 2", "b int4 3", "c date 4 infinity"), "does not fit into DATE"),
    ],
)
def test_what_the_lake_cannot_follow_is_named(described: tuple[str, ...], problem: str) -> None:
    assert problem in "; ".join(change(*described).problems)


def test_rows_of_an_older_schema_find_their_columns_and_bring_none_back() -> None:
    now = columns("id int8 1", "c text 2", "a int4 5")
    gone = fitted(shape_of_source(FIRST), now, keeps_dropped=False).after
    late = fitted(gone, None, late=[FIRST], keeps_dropped=False)
    assert (late.is_none, late.after.lake_names(FIRST)) == (True, {"id": "id", "a": "c"})
    newer = columns("id int8 1", "c text 2", "a int4 5", "d text 6")
    assert fitted(gone, None, late=[newer]).words() == {"added": ["d"]}


def test_a_column_that_came_and_went_within_a_claim_is_dropped_already() -> None:
    came = columns("id int8 1", "a text 2", "b int4 3", "c text 4")
    kept = fitted(shape_of_source(FIRST), FIRST, [came])
    assert (kept.after.names, kept.after.shown, kept.rewrites) == (("id", "a", "b", "c"), ("id", "a", "b"), False)
    assert fitted(shape_of_source(FIRST), FIRST, [came], keeps_dropped=False).is_none


def test_a_late_event_brings_no_column_back_that_came_and_went_within_a_claim() -> None:
    came = replace(columns("id int8 1", "a text 2", "b int4 3", "c text 4"), generation=10)
    followed = fitted(shape_of_source(FIRST), replace(FIRST, generation=20), [came], keeps_dropped=False)
    gone = followed.after
    assert (gone.names, followed.is_none, followed.rewrites) == (("id", "a", "b"), False, False)
    assert fitted(gone, None, late=[came], keeps_dropped=False).is_none
    known = shape_of([*gone.types, ("_cdc_version", "STRING")], gone.properties())
    assert fitted(known, None, late=[came], keeps_dropped=False).is_none


def test_a_late_event_keeps_the_values_of_a_column_that_came_and_went_hidden() -> None:
    came = replace(columns("id int8 1", "a text 2", "b int4 3", "c text 4"), generation=10)
    gone = fitted(shape_of_source(FIRST), replace(FIRST, generation=20)).after
    kept = fitted(gone, None, late=[came]).after
    assert (kept.names, kept.shown) == (("id", "a", "b", "c"), ("id", "a", "b"))
    assert fitted(kept, None, late=[came]).is_none


def test_a_generation_that_the_table_cannot_record_is_no_change() -> None:
    """Without numbers of columns there is nothing to follow; each claim would make a commit of its own."""
    plain = tuple(replace(column, number=None) for column in FIRST.columns)
    unnumbered = replace(FIRST, columns=plain, generation=7)
    first = fitted(shape_of_source(replace(unnumbered, generation=0)), unnumbered)
    assert first.is_none
    numbered = fitted(shape_of_source(FIRST), replace(FIRST, generation=7))
    assert (numbered.is_none, numbered.is_generation_alone) == (False, True)


def test_a_claim_ends_before_rows_that_cannot_be_merged_with_those_before() -> None:
    added = columns("id int8 1", "a text 2", "b int4 3", "c text 4")
    dropped = columns("id int8 1", "b int4 3", "c text 4")
    again = columns("id int8 1", "b int4 3", "c text 4", "a text 5")
    renamed = columns("id int8 1", "d text 2", "b int4 3")
    other_key = columns("id int8 1", "a text 2", "b int4 3", key=("id", "b"))
    assert in_one_claim([FIRST, None, added, dropped]) == 4
    assert in_one_claim([FIRST, None, added, dropped, again]) == 4
    assert in_one_claim([dropped, again]) == 2
    for other in (renamed, other_key, columns("id int8 1", "a text 2", "b text 3")):
        assert in_one_claim([None, FIRST, FIRST, other, None]) == 3
    assert in_one_claim([None, None]) == 2


def test_a_boundary_is_never_parted_and_late_slices_part_nothing() -> None:
    rows = [replace(slice_row(number), boundary_id=number // 2, schema_id="ab"[number > 2]) for number in range(1, 6)]
    schemas = {"a": FIRST, "b": columns("id int8 1", "d text 2", "b int4 3")}

    def numbers(*found: int) -> list[int]:
        slices = first_with_same_columns(
            [rows[number - 1] for number in found], lambda row: schemas[row.schema_id or ""]
        )
        return [row.number for row in slices]

    assert numbers(1, 2, 3, 4) == [1]
    assert numbers(2, 3, 4) == [2, 3]
    rows[2] = replace(rows[2], late=True)
    assert numbers(1, 2, 3, 4) == [1, 2, 3]
    assert numbers() == []


@pytest.mark.parametrize(
    ("narrow", "wide", "fits"),
    [
        ("INT", "BIGINT", True),
        ("BIGINT", "INT", False),
        ("INT", "DECIMAL(10,0)", False),
        ("DECIMAL(10,2)", "DECIMAL(12,2)", True),
        ("DECIMAL(10,2)", "DECIMAL(11,4)", False),
        ("DECIMAL(10,2)", "STRING", False),
        ("DATE", "TIMESTAMP_NTZ", True),
        ("DATE", "TIMESTAMP", False),
        ("FLOAT", "DOUBLE", True),
    ],
)
def test_a_type_is_wider_if_it_holds_every_value_as_the_source_turns_it(narrow: str, wide: str, *, fits: bool) -> None:
    assert (wider(narrow, wide) == wide) == fits
