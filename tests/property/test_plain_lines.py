"""Events that are like those before them become the rows, versions and states that they become one by one."""

from itertools import groupby
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cdc_pipeline.record import TableName
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, content_of
from cdc_pipeline.sources.debezium.partition import Line
from cdc_pipeline.sources.debezium.plain_events import Adding
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.files.partition_files import RawLine
from cdc_pipeline.types import PLACEHOLDER_TEXTS
from tests.support.change_files import json_lines

ORDERS, BAG = "shop.public.orders", "shop.public.bag"
TYPES = {"id": "bigint", "name": "text", "price": "numeric"}
SCHEMAS = [
    {"fields": [{"field": "after", "fields": [{"field": name, "type": kind, **more} for name, kind in names.items()]}]}
    for names in ({"id": "int64", "name": "string"}, {"id": "int64", "name": "string", "price": "string"})
    for more in ({}, {"optional": True, "default": "x"})
]
USUAL_ROW = st.fixed_dictionaries({"id": st.integers(0, 3), "name": st.just("x"), "price": st.just("1.50")})
ODD_ROW = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from([1, 2, None, "1", 1 << 70]),
        "name": st.sampled_from(["y", None, *PLACEHOLDER_TEXTS, [1], {"a": 1}]),
        "price": st.sampled_from(["2.50", None, 1, 1.5, "x", "Ag==", "1234", "0E-8"]),
        "more": st.just(1),
    },
)
ROW = USUAL_ROW | USUAL_ROW | ODD_ROW
SOURCE = st.fixed_dictionaries(
    {"schema": st.just("public"), "table": st.sampled_from(["orders", "orders", "orders", "bag", "other"])},
    optional={
        "db": st.sampled_from(["shop", "", ["shop"]]),
        "lsn": st.integers(0, 4),
        "sequence": st.sampled_from(['["3","4"]', '["4","5"]']),
        "version": st.just("3.0.0.Final"),
        "txId": st.integers(1, 2),
        "snapshot": st.sampled_from(["false", "last"]),
        "ts_ms": st.integers(1, 3),
        "connector": st.sampled_from(["postgresql", "mysql"]),
    },
)
PLACE = {"schema": "public", "table": "orders", "lsn": 3, "txId": 1, "version": "3.0.0.Final"}
USUAL_SOURCE = st.just(PLACE)
AT_ONE_PLACE = [
    {"op": operation, "before": before, "after": after, "source": PLACE}
    for operation, before, after in (
        ("u", None, {"id": 2, "name": "x", "price": "1"}),
        ("d", {"id": 0}, None),
        ("u", None, {"id": 2, "name": "y", "price": "1"}),
        ("c", None, {"id": 1, "name": PLACEHOLDER_TEXTS[0], "price": "1"}),
    )
]
EVENT = st.fixed_dictionaries(
    {
        "op": st.sampled_from("cuuuuurdt"),
        "before": st.none() | st.none() | ROW,
        "after": ROW,
        "source": SOURCE | USUAL_SOURCE,
    }
)
USUAL_EVENT = st.fixed_dictionaries(
    {"op": st.sampled_from("cud"), "before": st.none() | USUAL_ROW, "after": ROW, "source": USUAL_SOURCE}
)
WRAPPED = st.fixed_dictionaries({"payload": EVENT | USUAL_EVENT, "schema": st.sampled_from(SCHEMAS)})
HEADERS = st.none() | st.sampled_from(
    [{}, {"trace": "x"}, {"__debezium.oldkey": '{"id": 9}'}, {"__debezium.oldkey": "{"}]
)
RECORD = st.fixed_dictionaries(
    {"key": st.none() | st.sampled_from([{"id": 1}, {"part": 1}]), "value": EVENT, "headers": HEADERS}
)
LINE = EVENT | EVENT | WRAPPED | RECORD | st.sampled_from([None, {"ts_ms": 1}, {"op": "x"}])
USUAL_LINE = USUAL_EVENT | st.fixed_dictionaries({"payload": USUAL_EVENT, "schema": st.sampled_from(SCHEMAS)})
TRANSACTIONS = st.one_of(
    *(
        st.lists(st.tuples(st.integers(0, 1), st.lists(each, min_size=1, max_size=6)), min_size=1, max_size=8)
        for each in (LINE, USUAL_LINE, USUAL_EVENT)
    )
)
WITH_A_NUMBER = [
    {"op": "u", "before": None, "after": {"id": 1, "name": "x", "price": price}, "source": PLACE}
    for price in ("1", 1.5)
]


class EventByEvent(DebeziumDecoder):
    """Adds no event by the shortest way."""

    def add_plain(self, event: EnvelopeEvent, adding: Adding, settings: TableSettings) -> bool:
        del event, adding, settings
        return False


class Counting(DebeziumDecoder):
    """`alone`: how many events it did not add by the shortest way."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.alone = 0

    def add_plain(self, event: EnvelopeEvent, adding: Adding, settings: TableSettings) -> bool:
        added = super().add_plain(event, adding, settings)
        self.alone += not added
        return added


def outcome(decoder: DebeziumDecoder, transactions: list[tuple[int, list[Any]]]) -> list[object]:
    """What becomes of the lines: rows, unfit events, skipped lines, times, states to register, warnings."""
    with capture_logs() as logs:
        return [*_decoded(decoder, transactions), logs]


def _decoded(decoder: DebeziumDecoder, transactions: list[tuple[int, list[Any]]]) -> list[object]:
    """The decoder gets all transactions of a stream partition at once that follow each other; or each alone."""
    found: list[object] = []
    placed = [
        (number, (_lines(position, documents), position)) for position, (number, documents) in enumerate(transactions)
    ]
    for number, following in groupby(placed, key=itemgetter(0)):
        parts = [part for _, part in following]
        whole = [[part] for part in parts] if isinstance(decoder, EventByEvent) else [parts]
        found += [
            (decoded.commit_time, dict(decoded.last_position), list(decoded.skipped))
            for each in whole
            for decoded in decoder.add_all(number, each)
        ]
        if number:
            found += map(shown, decoder.take(number))
    return [*found, *map(shown, decoder.take(0))]


def _lines(position: int, documents: list[Any]) -> list[Line]:
    texts = [json_lines([document]) for document in documents]
    raws = [
        RawLine(place=position << 8 | place, file="a", number=place, text=text, written=5)
        for place, text in enumerate(texts)
    ]
    return [Line(raw=raw, content=content_of(raw.text)) for raw in raws]


def shown(events: Any) -> object:
    rows, unfit = events.rows.to_pylist(), [repr(each) for each in events.unfit]
    return events.table, events.schema, rows, events.commit_position.tolist(), events.stream_partition.tolist(), unfit


@settings(deadline=None, max_examples=400)
@given(
    transactions=TRANSACTIONS,
    alone=st.booleans(),
    declared=st.booleans(),
    named=st.booleans(),
    horizon=st.sampled_from(["", "0" * 31 + "3"]),
)
@example(transactions=[(0, AT_ONE_PLACE)], alone=True, declared=True, named=True, horizon="")
@example(transactions=[(0, WITH_A_NUMBER)], alone=True, declared=True, named=True, horizon="")
def test_lines_become_what_they_become_one_by_one(
    *, transactions: list[tuple[int, list[Any]]], alone: bool, declared: bool, named: bool, horizon: str
) -> None:
    orders = {"name": ORDERS, **({"id": ["id"]} if named else {}), **({"columns": TYPES} if declared else {})}
    tables = [TableSettings.model_validate(table) for table in (orders, {"name": BAG, "columns": TYPES})]
    found, expected = (
        outcome(
            decoder(
                tables=DebeziumTables(tables, {}),
                sequence_by=(),
                last_position={0: {}, 1: {}},
                horizons={TableName.parse(ORDERS): horizon},
                alone=alone,
            ),
            transactions,
        )
        for decoder in (DebeziumDecoder, EventByEvent)
    )
    assert found == expected


@pytest.mark.parametrize("price", ["1234", "20240101", "9.50", "-1", "0E-18", "1E+5", None])
def test_numbers_are_added_many_at_once_also_those_that_look_like_bytes(price: str | None) -> None:
    table = TableSettings.model_validate({"name": ORDERS, "id": ["id"], "columns": TYPES})
    decoder = Counting(tables=DebeziumTables([table], {}), sequence_by=(), last_position={0: {}})
    documents = [
        {"op": "c", "after": {"id": place, "name": "x", "price": price}, "source": PLACE} for place in range(20)
    ]
    decoder.add(0, _lines(0, documents), 0)
    assert decoder.alone == 1


def test_lines_of_two_tables_in_turns_become_one_set_of_rows_for_each() -> None:
    """A set of rows takes the time of a thousand rows, however few it has."""
    tables = [TableSettings.model_validate({"name": name, "id": ["id"], "columns": TYPES}) for name in (ORDERS, BAG)]
    decoder = DebeziumDecoder(tables=DebeziumTables(tables, {}), sequence_by=(), last_position={0: {}})
    documents = [
        {"op": "c", "after": {"id": place, "name": "x", "price": None}, "source": {**PLACE, "table": table}}
        for place in range(4)
        for table in ("orders", "bag")
    ]
    decoder.add(0, _lines(0, documents), 0)
    assert [(str(events.table), events.rows["id"].to_pylist()) for events in decoder.take(0)] == [
        (ORDERS, [0, 1, 2, 3]),
        (BAG, [0, 1, 2, 3]),
    ]
