"""Which changes of a table its stream follows: the one that the catalogue shows, and none beside it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cdc_pipeline.errors import StreamMoved, TableStale
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.mysql.shape import MysqlColumn, TableShape
from cdc_pipeline.sources.mysql.statements import Effect
from cdc_pipeline.sources.mysql.streamed_table import BinlogTable, noted_changes

ID = MysqlColumn(name="id", written="int(11)", type="int4", nullable=False)
MORE = MysqlColumn(name="more", written="int(11)", type="int4")
BEFORE, NOW = TableShape(columns=(ID,), generation=5), TableShape(columns=(ID, MORE), generation=20, looked_at=20)


def streamed(
    *, shapes: Sequence[TableShape] = (BEFORE, NOW), start: int = 5, looked_at: int = 30, noted: str = ""
) -> BinlogTable:
    return BinlogTable(
        name=TableName(database="shop", schema="shop", table="orders"),
        key=("id",),
        shapes=shapes,
        start=start,
        looked_at=looked_at,
        noted=noted,
        shows_computed=True,
        makes_column_keys=True,
    )


@pytest.mark.parametrize("second", [11, 21])
def test_one_change_is_followed_and_a_second_one_is_not(second: int) -> None:
    table = streamed()
    table.take(Effect.CHANGED, 10)
    with pytest.raises(TableStale, match="no longer shows"):
        table.take(Effect.CHANGED, second)


def test_a_change_behind_the_look_that_found_the_new_columns_is_another_one() -> None:
    with pytest.raises(TableStale, match="no longer shows"):
        streamed(start=11).take(Effect.CHANGED, 21)


def test_a_change_that_is_registered_counts_for_the_next_reader() -> None:
    table = streamed()
    table.take(Effect.CHANGED, 10)
    noted = noted_changes([table], 11)
    assert (noted_changes([table], 10), noted_changes([table], 20)) == ("", "")
    again = streamed(start=11, noted=noted)
    assert noted_changes([again], 12) == noted
    with pytest.raises(TableStale, match="no longer shows"):
        again.take(Effect.CHANGED, 15)
    streamed(start=11, noted=noted.replace("20", "19")).take(Effect.CHANGED, 15)


def test_a_change_that_rows_do_not_show_is_followed_once_up_to_the_look_that_found_it() -> None:
    wider = streamed(shapes=(replace(BEFORE, looked_at=20),))
    wider.take(Effect.CHANGED, 10)
    for other in (wider, streamed(shapes=(replace(BEFORE, looked_at=5),))):
        with pytest.raises(TableStale, match="no longer shows"):
            other.take(Effect.CHANGED, 15)


def test_a_change_behind_the_look_at_the_catalogue_asks_for_another_look() -> None:
    with pytest.raises(StreamMoved):
        streamed(looked_at=20).take(Effect.CHANGED, 20)
