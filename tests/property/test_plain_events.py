"""Events that show their whole row give the changes that looking at each of their values gives."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.sources.debezium.changes import Change, changes_of, shown_changes
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent
from cdc_pipeline.sources.debezium.one_line import LineRefused, attempt
from cdc_pipeline.sources.debezium.tables import Layout
from cdc_pipeline.types import PLACEHOLDER_TEXTS

COLUMNS = ("id", "part", "name", "tags")
FIELDS = {"id": {"type": "int32"}, "part": {"type": "string"}, "name": {"type": "bytes"}, "tags": {"type": "array"}}
IDS = st.integers(0, 1) | st.sampled_from([None, True, "1"])
VALUES = st.sampled_from([None, 1, "x", *PLACEHOLDER_TEXTS, ["x"], [PLACEHOLDER_TEXTS[0]], {"a": 1}, 1.5, float("nan")])
ROWS = st.fixed_dictionaries({"id": IDS, "part": IDS, "name": VALUES, "tags": VALUES}) | st.fixed_dictionaries(
    {}, optional={"id": IDS, "part": IDS, "name": VALUES, "tags": VALUES, "other": VALUES}
)
KEYS = st.fixed_dictionaries({}, optional={"id": IDS, "part": IDS})
HEADERS = st.fixed_dictionaries(
    {}, optional={"trace": st.just("x"), "__debezium.oldkey": KEYS | st.sampled_from(["{", 1])}
)
PLACE = {"lsn": 7, "txId": 1}
SOURCES = st.sampled_from([{}, PLACE, {"connector": "mysql"}])


WHOLE = st.fixed_dictionaries({"id": st.just(1), "part": st.just("1"), "name": VALUES, "tags": st.just("x")})


def events(
    operations: str, after: st.SearchStrategy[Any], source: st.SearchStrategy[Any], headers: st.SearchStrategy[Any]
) -> st.SearchStrategy[EnvelopeEvent]:
    return st.builds(
        EnvelopeEvent,
        operation=st.sampled_from(operations),
        value=st.fixed_dictionaries({"before": st.none() | ROWS, "after": after}),
        source=source,
        key=st.none() | KEYS,
        headers=headers,
        fields=st.none(),
        key_fields=st.none(),
        transaction=st.none(),
        commit_time=st.none(),
    )


ODD = events("cur", ROWS, SOURCES, st.none() | HEADERS)
USUAL = events("cu", WHOLE, st.just(PLACE), st.none())
DELETES = events("d", st.none(), st.just(PLACE), st.none())


def key_change(operation: str, before: Any, after: Any) -> EnvelopeEvent:
    """One of the two events of a key change in a file without headers."""
    return EnvelopeEvent(
        operation=operation,
        value={"before": before, "after": after},
        source=PLACE,
        key=None,
        headers=None,
        fields=None,
        key_fields=None,
        transaction=None,
        commit_time=None,
    )


def shown(found: tuple[Change, ...] | LineRefused) -> str:
    return f"{type(found)} {found}" if isinstance(found, LineRefused) else repr([_in_order(each) for each in found])


def _in_order(change: Change) -> list[Any]:
    return [change.operation, sorted(change.values.items()), change.absent, sorted(change.old_id.items())]


@settings(deadline=None, max_examples=400)
@given(
    event=ODD | USUAL,
    before_it=st.none() | DELETES | ODD,
    alone=st.booleans(),
    key=st.sampled_from([("id",), ("id", "part")]),
    fields=st.sampled_from([{}, FIELDS]),
)
@example(
    event=key_change("c", None, {"id": 1, "part": "1", "name": PLACEHOLDER_TEXTS[0], "tags": "x"}),
    before_it=key_change("d", {"id": 0}, None),
    alone=True,
    key=("id",),
    fields={},
)
def test_an_event_gives_the_changes_that_its_values_show(
    *, event: EnvelopeEvent, before_it: EnvelopeEvent | None, alone: bool, key: tuple[str, ...], fields: dict[str, Any]
) -> None:
    columns = tuple(Column(name=name, type="text") for name in COLUMNS)
    table = TableName.parse("shop.public.orders")
    layout = Layout(table=table, schema=TableSchema(columns=columns, key=key), fields=fields)
    found = attempt(lambda: changes_of(event, layout, before_it=before_it, alone=alone))
    expected = attempt(lambda: shown_changes(event, event.after or {}, layout, before_it=before_it, alone=alone))
    assert shown(found) == shown(expected)
