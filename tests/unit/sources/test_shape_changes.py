"""Which changes of a column's type leave every value as it is printed."""

import pytest

from cdc_pipeline.sources.postgres.shape import ShapeColumn, SourceShape
from cdc_pipeline.sources.postgres.shape_changes import Followed, Retaken, compare_shapes


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
