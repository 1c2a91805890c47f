"""Which of a table's shapes an event of a PostgreSQL stream has, if several have the same columns."""

from dataclasses import replace

import pytest

from cdc_pipeline.record import TableName
from cdc_pipeline.sources.pgoutput.messages import Relation, RelationColumn
from cdc_pipeline.sources.postgres.planned_table import PlannedTable
from cdc_pipeline.sources.postgres.shape import ShapeColumn, SourceShape
from cdc_pipeline.sources.postgres.streamed_table import StreamedTable


def shape_of(names: str, generation: int) -> SourceShape:
    """The letters are the names of the columns, in the order of their numbers."""
    columns = tuple(
        ShapeColumn(
            number=number,
            name=name,
            type_oid=23,
            modifier=-1,
            changed_by="1",
            missing=None,
            generated=None,
            type="int4",
        )
        for number, name in enumerate(names, 1)
    )
    return SourceShape(oid=1, file_number=1, last_number=len(names), columns=columns, generation=generation)


def relation_of(shape: SourceShape) -> Relation:
    columns = tuple(
        RelationColumn(name=column.name, type_oid=column.type_oid, modifier=column.modifier, is_key=False)
        for column in shape.columns
    )
    return Relation(oid=1, namespace="public", name="t", replica_identity="f", columns=columns)


def opened(*shapes: SourceShape) -> StreamedTable:
    name = TableName.parse("shop.public.t")
    return StreamedTable(PlannedTable(name=name, oid=1, key=("k",), primary_key=("k",), shapes=shapes), start=0)


@pytest.mark.parametrize("renamed", ["kba", "kxb"], ids=["exchanged", "renamed"])
def test_names_that_are_taken_back_are_read_under_the_last_shape_though_the_first_has_the_same(renamed: str) -> None:
    first, second, third = shape_of("kab", 0), shape_of(renamed, 100), shape_of("kab", 200)
    table = opened(first, second, third)
    assert table.shape(relation_of(third), 150) == third
    assert table.present(150) == third.schema(("k",))


def test_events_before_each_change_have_the_shapes_in_order() -> None:
    first, second, third = shape_of("kab", 0), shape_of("kba", 100), shape_of("kab", 200)
    table = opened(first, second, third)
    assert table.shape(relation_of(first), 50) == first
    assert table.shape(relation_of(second), 90) == second
    assert table.shape(relation_of(second), 150) == second
    assert table.shape(relation_of(third), 160) == third
    assert table.shape(relation_of(second), 210) is None


def test_a_shape_that_differs_from_the_next_only_in_a_generated_column_is_passed_by_position_too() -> None:
    first, second = shape_of("ka", 0), shape_of("kb", 100)
    computed = replace(second.columns[-1], number=3, name="c", generated="b + 1", inputs=(2,))
    third = replace(second, columns=(*second.columns, computed), last_number=3, generation=200)
    assert opened(first, second, third).shape(relation_of(second), 150) == third


def test_events_that_show_a_generated_column_have_the_shapes_in_which_it_has_that_name() -> None:
    plain = shape_of("ka", 0)
    computed = [
        ShapeColumn(3, name, type_oid=23, modifier=-1, changed_by="1", missing=None, generated="a + 1", inputs=(2,))
        for name in "ghg"
    ]
    shapes = [
        replace(plain, columns=(*plain.columns, column), last_number=3, generation=generation)
        for generation, column in zip((0, 100, 200), computed, strict=True)
    ]
    dropped = replace(plain, last_number=3, generation=300)
    table = opened(*shapes, dropped)
    assert table.present(40) == shapes[0].schema(("k",))
    found = [table.shape(relation_of(shape), 50) for shape in (*shapes, dropped)]
    assert found == [*shapes, dropped]
    assert table.shape(relation_of(shapes[-1]), 60) is None
    assert opened(*shapes, dropped).shape(relation_of(shapes[0]), 300) is None
