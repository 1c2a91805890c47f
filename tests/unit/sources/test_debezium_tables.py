"""Which table an event belongs to, and what a table is before its first whole row."""

from typing import Any

from cdc_pipeline.record import TableName
from cdc_pipeline.settings import TableSettings
from tests.support.decoding import Decoding


def vitess(keyspace: str, id_: int) -> dict[str, Any]:
    source = {"connector": "vitess", "name": "v", "db": "", "keyspace": keyspace, "table": "orders", "shard": "-80"}
    return {"op": "c", "before": None, "after": {"id": id_}, "source": source | {"ts_ms": 1_700_000_000_000}}


def test_the_keyspace_of_vitess_is_its_database() -> None:
    names = ("v.commerce.orders", "sales.main.orders")
    reader = Decoding(*(TableSettings(name=name, id=("id",), columns={"id": "int8"}) for name in names))
    reader.send(vitess("commerce", 1), vitess("sales", 2), vitess("other", 3), vitess("sales", 4))
    found = {events.table: events.rows["id"].to_pylist() for events in reader.events}
    assert found == {TableName.parse(names[0]): [1], TableName.parse(names[1]): [2, 4]}
    assert reader.skipped == ["row of a table that is not listed"]
