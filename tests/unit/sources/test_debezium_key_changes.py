"""Key changes whose key has more columns than the lake's id, or other ones."""

import json

import pytest

from tests.support.decoding import PLACEHOLDER, Decoding, Json, orders, postgres

COLUMNS = {"id": "int8", "region": "text", "big": "text"}


def change_key(reader: Decoding, old: Json, new: Json, before: Json, after: Json) -> None:
    old_half, new_half = postgres("d", 20, before=before), postgres("c", 20, after=after)
    reader.send(old_half, key=old, headers={"__debezium.newkey": json.dumps(new)})
    reader.send(None, key=old, headers={"__debezium.newkey": json.dumps(new)})
    reader.send(new_half, key=new, headers={"__debezium.oldkey": json.dumps(old)})


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_key_change_that_keeps_the_id_is_an_update(partitions: int) -> None:
    reader = Decoding(orders(id=["id"], columns=COLUMNS), partitions=partitions)
    old, new = {"id": 1, "region": "eu"}, {"id": 1, "region": "us"}
    change_key(reader, old, new, {**old, "big": None}, {**new, "big": PLACEHOLDER})
    (row,) = reader.rows
    assert (row["_cdc_op"], row["region"], row["_cdc_absent"], row.get("big")) == ("u", "us", ["big"], None)
    assert reader.refused == []


def test_a_key_change_that_keeps_the_id_and_shows_its_row_sets_all_of_it() -> None:
    reader = Decoding(orders(id=["id"], columns=COLUMNS))
    old, new = {"id": 1, "region": "eu"}, {"id": 1, "region": "us"}
    change_key(reader, old, new, {**old, "big": None}, {**new, "big": "B"})
    (row,) = reader.rows
    assert (row["id"], row["region"], row["big"], row.get("_cdc_absent")) == (1, "us", "B", None)


def test_a_placeholder_is_no_value_where_the_key_has_other_columns_than_the_id() -> None:
    reader = Decoding(orders(id=["region"], columns=COLUMNS))
    old, new = {"id": 1}, {"id": 2}
    change_key(reader, old, new, {**old, "region": None, "big": None}, {"id": 2, "region": "eu", "big": PLACEHOLDER})
    (row,) = reader.rows
    assert (row["_cdc_op"], row["region"], row["_cdc_absent"], row.get("big")) == ("u", "eu", ["big"], None)
    assert ["the id column region is NULL" in why for why in reader.refused] == [True]


@pytest.mark.parametrize("odd", ["a\tb", "a\nb", "a\x01b"])
def test_the_key_in_a_header_may_have_control_characters(odd: str) -> None:
    """Kafka Connect's SimpleHeaderConverter escapes quotes and backslashes, and no control characters."""
    reader = Decoding(orders(id=["code"], columns={"code": "text", "v": "text"}))
    value = postgres("c", 20, after={"code": "c", "v": PLACEHOLDER})
    reader.send(value, key={"code": "c"}, headers={"__debezium.oldkey": f'{{"code":"{odd}"}}'})
    assert [(row["_cdc_op"], row["code"]) for row in reader.rows] == [("d", odd), ("m", "c")]
    assert reader.refused == []
