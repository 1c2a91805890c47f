"""What a history becomes when a snapshot brings columns that no stream has shown it: decided without any lake."""

from dataclasses import replace

from cdc_pipeline.lake.fitting import fitted, ids_before, taken_over
from cdc_pipeline.lake.shape import Shape, ShapeChange, shape_of, shape_of_source
from cdc_pipeline.record import Column, TableSchema
from tests.support.shapes import columns

FIRST = columns("id int8 1", "a text 2", "b int4 3")
ONE, OTHER = 16_400, 16_500
BEFORE = replace(shape_of_source(FIRST), source_id=ONE)


def taken(
    *described: str, source_id: int = ONE, before: Shape = BEFORE, keeps_dropped: bool = True, is_known: bool = True
) -> ShapeChange:
    return taken_over(before, columns(*described), source_id, keeps_dropped=keeps_dropped, is_known=is_known)


def unnumbered(shape: Shape) -> Shape:
    return replace(shape, columns=tuple(replace(column, number=None) for column in shape.columns), highest=0)


def sources(change: ShapeChange) -> dict[str, str | None]:
    return dict(change.sources)


def test_columns_of_the_same_table_go_on_as_a_stream_would_show_them() -> None:
    assert taken("id int8 1", "a text 2", "b int4 3").is_none
    for described in (("id int8 1", "c text 2", "b int8 3"), ("id int8 1", "b int4 3", "d text 4")):
        change = taken(*described)
        assert replace(change.after, source_id=0) == fitted(shape_of_source(FIRST), columns(*described)).after
        assert change.problems == ()


def test_a_table_registered_anew_begins_again_with_the_first_generation() -> None:
    before = replace(BEFORE, generation=20)
    after = taken("id int8 1", "a text 2", "b int4 3", source_id=OTHER, before=before).after
    properties = before.properties() | after.properties()
    assert shape_of([*after.types, ("_cdc_version", "STRING")], properties).generation == 0


def test_a_type_that_does_not_hold_the_old_values_begins_a_column_beside_the_old_one() -> None:
    change = taken("id int8 1", "a text 2", "b text 3")
    assert sources(change) == {"id": "id", "a": "a", "b": None, "_cdc_dropped_0_b": "b"}
    assert {column.name: (column.type, column.dropped) for column in change.after.columns} == {
        "id": ("BIGINT", False),
        "a": ("STRING", False),
        "b": ("STRING", False),
        "_cdc_dropped_0_b": ("INT", True),
    }
    assert sources(taken("id int8 1", "a text 2", "b text 3", keeps_dropped=False)) == {"id": "id", "a": "a", "b": None}


def test_a_narrower_type_leaves_the_column_as_wide_as_its_older_values() -> None:
    wide = taken("id int8 1", "a text 2", "b int8 3").after
    for source_id in (ONE, OTHER):
        narrow = columns("id int4 1", "a text 2", "b int4 3")
        change = taken_over(wide, narrow, source_id, keeps_dropped=True)
        assert (change.problems, change.after.types) == ((), wide.types)
        assert fitted(change.after, narrow, keeps_wider=True).is_none
    assert fitted(wide, narrow).problems


def test_it_may_do_so_again_and_again() -> None:
    once = taken("id int8 1", "a text 2", "b text 3").after
    twice = taken("id int8 1", "a text 2", "b int4 3", before=once)
    assert {"_cdc_dropped_0_b", "_cdc_dropped_1_b", "b"} < twice.sources.keys()
    assert (twice.sources["_cdc_dropped_1_b"], twice.problems) == ("b", ())


def test_without_numbers_a_column_goes_on_by_its_name() -> None:
    before = unnumbered(BEFORE)
    found = columns("id int8 1", "a int4 2", "c text 3")
    schema = TableSchema(columns=tuple(replace(column, number=None) for column in found.columns), key=("id",))
    change = taken_over(before, schema, 0, keeps_dropped=True)
    assert sources(change) == {"id": "id", "a": None, "c": None, "_cdc_dropped_0_a": "a", "b": "b"}


def test_a_new_column_has_a_new_number_also_where_an_earlier_table_had_higher_ones() -> None:
    before = replace(shape_of_source(columns("id int8 1", "a text 2", "b int4 9")), source_id=0)
    after = taken("id int8 1", "a text 2", "b int4 3", source_id=0, before=before, is_known=False).after
    assert (before.highest, after.highest) == (9, 3)
    wider = columns("id int8 1", "a text 2", "b int4 3", "c text 4")
    assert [column.name for column in fitted(after, None, (), (wider,)).after.columns] == ["id", "a", "b", "c"]


def test_a_new_table_of_the_same_name_has_other_numbers_for_the_same_columns() -> None:
    change = taken("id int8 1", "b int4 2", "a text 3", source_id=OTHER)
    assert (sources(change), change.rewrites) == ({"id": "id", "b": "b", "a": "a"}, False)
    assert {column.name: column.number for column in change.after.columns} == {"id": 1, "b": 2, "a": 3}
    assert (change.after.source_id, change.is_none) == (OTHER, False)


def test_a_new_table_lacks_columns_of_the_old_one_and_uses_their_numbers_again() -> None:
    change = taken("id int8 1", "c text 2", "b text 3", source_id=OTHER)
    assert sources(change) == {"id": "id", "c": None, "b": None, "a": "a", "_cdc_dropped_0_b": "b"}
    assert [column.name for column in change.after.columns if column.dropped] == ["a", "_cdc_dropped_0_b"]
    later = fitted(change.after, columns("id int8 1", "c text 2", "b text 3", "a text 4"))
    assert sources(later)["_cdc_dropped_0_a"] == "a"


def test_a_history_that_does_not_know_its_table_takes_it_for_the_same() -> None:
    change = taken("id int8 1", "c text 2", "b int4 3", before=shape_of_source(FIRST))
    assert (change.renamed, change.after.source_id) == ({"a": "c"}, ONE)


def test_a_table_without_a_number_of_its_own_gave_others_to_its_columns_if_it_was_registered_anew() -> None:
    before = shape_of_source(FIRST)
    added = taken("id int8 1", "x text 2", "a text 3", "b int4 4", source_id=0, before=before, is_known=False)
    assert sources(added) == {"id": "id", "x": None, "a": "a", "b": "b"}
    dropped = taken("id int8 1", "b int4 2", source_id=0, before=before, is_known=False)
    assert {column.name: (column.number, column.dropped) for column in dropped.after.columns} == {
        "id": (1, False),
        "b": (2, False),
        "a": (None, True),
    }
    assert taken("id int8 1", "c text 2", "b int4 3", source_id=0, before=before).renamed == {"a": "c"}
    assert taken("id int8 1", "c text 2", "b int4 3", is_known=False).renamed == {"a": "c"}


def test_a_column_without_a_number_stays_if_its_table_was_registered_anew() -> None:
    """Events show only the columns that they have."""
    before = unnumbered(shape_of_source(FIRST))
    schema = TableSchema(columns=(Column(name="id", type="int8"),), key=("id",))
    change = taken_over(before, schema, 0, keeps_dropped=True, is_known=False)
    assert [column.name for column in change.after.columns if not column.dropped] == ["id", "a", "b"]


def test_ids_begin_anew_where_their_column_does_not_go_on() -> None:
    for source_id in (ONE, OTHER):
        change = taken("id text 1", "a text 2", source_id=source_id)
        assert (change.problems, change.sources["id"], change.sources["_cdc_dropped_0_id"]) == ((), None, "id")
        assert None in ids_before(BEFORE, columns("id text 1", "a text 2"), source_id)
        assert None not in ids_before(BEFORE, columns("id int8 1", "a int4 2"), source_id)
        assert None not in ids_before(BEFORE, columns("id int4 1", "b text 2"), source_id)
    assert None not in ids_before(BEFORE, replace(columns("key int8 1", "a text 2"), key=("key",)), ONE)
    assert None in ids_before(BEFORE, replace(columns("key int8 1", "a text 2"), key=("key",)), OTHER)


def test_an_older_schema_than_that_of_the_snapshot_changes_nothing_back() -> None:
    newer, older = (
        replace(columns("id int8 1", f"{name} text 2"), generation=place) for name, place in (("new", 9), ("a", 5))
    )
    after = taken_over(replace(BEFORE, generation=7), newer, ONE, keeps_dropped=True).after
    assert after.generation == 9
    assert fitted(after, older).is_none
    back = taken_over(after, older, ONE, keeps_dropped=True)
    assert (back.renamed, back.after.generation) == ({"new": "a"}, 5)
