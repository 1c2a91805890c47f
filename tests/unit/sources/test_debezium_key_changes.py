"""Keys of events that have more columns than the lake's id, or other ones; and their changes."""

import json

import pytest

from tests.support.decoding import ORDERS, PLACEHOLDER, Decoding, Json, orders, postgres

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


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_tombstone_that_compaction_left_of_a_key_change_deletes_the_old_row(
    partitions: int, *, restarts: bool
) -> None:
    """Both events of the key change are gone: a newer record of each key is in the topic."""
    reader = Decoding(orders(id=["id"], columns=COLUMNS), partitions=partitions, upserts={ORDERS})
    reader.send(postgres("c", 10, after={"id": 1, "region": "eu", "big": "B"}), key={"id": 1})
    if restarts:
        reader.restart()
    reader.send(None, key={"id": 1}, headers={"__debezium.newkey": json.dumps({"id": 2})})
    reader.send(postgres("u", 30, after={"id": 2, "region": "us", "big": "B"}), key={"id": 2})
    assert [(row["_cdc_op"], row["id"]) for row in reader.rows] == [("i", 1), ("d", 1), ("u", 2)]
    versions = [row["_cdc_version"] for row in reader.rows]
    assert (versions, reader.skipped, reader.refused) == (sorted(set(versions)), [], [])


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_tombstone_behind_the_delete_of_a_key_change_leaves_the_old_row_for_its_create(partitions: int) -> None:
    """The create takes what it leaves out from the old row."""
    reader = Decoding(orders(id=["id"], columns=COLUMNS), partitions=partitions, upserts={ORDERS})
    reader.send(postgres("c", 10, after={"id": 1, "region": "eu", "big": "B"}), key={"id": 1})
    before, after = {"id": 1, "region": None, "big": None}, {"id": 2, "region": "eu", "big": PLACEHOLDER}
    change_key(reader, {"id": 1}, {"id": 2}, before, after)
    found = [(row["_cdc_op"], row["id"], row.get("_cdc_absent")) for row in reader.rows]
    assert found == [("i", 1, None), ("d", 1, None), ("m", 2, ["big"])]
    assert len({row["_cdc_version"] for row in reader.rows[1:]}) == 1


@pytest.mark.parametrize("partitions", [1, 2])
def test_the_old_row_is_deleted_if_a_value_of_the_new_one_does_not_fit(partitions: int) -> None:
    """Only the source's correction of the new row may follow, and it names the new id alone."""
    reader = Decoding(orders(id=["id"], columns={"id": "int8", "n": "int4"}), partitions=partitions)
    reader.send(postgres("c", 10, after={"id": 1, "n": 1}), headers={})
    change_key(reader, {"id": 1}, {"id": 2}, {"id": 1, "n": None}, {"id": 2, "n": 3_000_000_000})
    reader.send(postgres("u", 30, after={"id": 2, "n": 30}), key={"id": 2}, headers={})
    assert [(row["_cdc_op"], row["id"]) for row in reader.rows] == [("i", 1), ("d", 1), ("u", 2)]
    assert ["the value of n does not fit" in why for why in reader.refused] == [True]


@pytest.mark.parametrize("old", [3_000_000_000, None])
def test_a_key_change_waits_as_a_whole_if_its_old_id_does_not_fit(old: int | None) -> None:
    reader = Decoding(orders(id=["id"], columns={"id": "int4", "n": "int4"}))
    change_key(reader, {"id": old}, {"id": 2}, {"id": old, "n": None}, {"id": 2, "n": 3_000_000_000})
    assert (reader.rows, len(reader.refused)) == ([], 1)


def test_an_update_of_a_keyless_table_waits_as_a_whole_if_its_new_row_does_not_fit() -> None:
    """Copies are counted: a delete that is applied now and again by the replay would take two of them."""
    reader = Decoding(orders(columns={"n": "int4"}))
    reader.send(postgres("c", 10, after={"n": 1}), postgres("u", 20, before={"n": 1}, after={"n": 3_000_000_000}))
    assert ([row["_cdc_op"] for row in reader.rows], len(reader.refused)) == (["i"], 1)


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


@pytest.mark.parametrize("updates", [1, 9])
@pytest.mark.parametrize(
    ("type_name", "old", "new", "operations"),
    [
        ("numeric", "1.0", "1.00", ["d", "m"]),
        ("numeric", "1", "1.0", ["d", "m"]),
        ("numeric", "1.0", "1.0", ["u"]),
        ("numeric(12,2)", "1.0", "1.00", ["u"]),
        ("float8", "-0.0", "0.0", ["u"]),
        ("text", "1.0", "1.00", ["d", "m"]),
    ],
)
def test_numbers_that_are_two_texts_in_the_lake_are_two_ids(
    type_name: str, old: str, new: str, operations: list[str], updates: int
) -> None:
    reader = Decoding(orders(id=["id"], columns={"id": type_name}))
    events = [
        json.dumps(postgres("u", 20 + number, before={"id": "old"}, after={"id": "new"})) for number in range(updates)
    ]
    reader.send(*(text.replace('"old"', old).replace('"new"', new).encode() for text in events))
    assert [row["_cdc_op"] for row in reader.rows] == operations * updates
    assert reader.refused == []


@pytest.mark.parametrize("odd", ["a\tb", "a\nb", "a\x01b"])
def test_the_key_in_a_header_may_have_control_characters(odd: str) -> None:
    """Kafka Connect's SimpleHeaderConverter escapes quotes and backslashes, and no control characters."""
    reader = Decoding(orders(id=["code"], columns={"code": "text", "v": "text"}))
    value = postgres("c", 20, after={"code": "c", "v": PLACEHOLDER})
    reader.send(value, key={"code": "c"}, headers={"__debezium.oldkey": f'{{"code":"{odd}"}}'})
    assert [(row["_cdc_op"], row["code"]) for row in reader.rows] == [("d", odd), ("m", "c")]
    assert reader.refused == []


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("grown", [{"id": 1, "region": "us"}, {"region": "us"}])
def test_a_row_waits_whose_key_got_other_columns_than_the_id_of_the_first_keys(grown: Json, rows: int) -> None:
    """Rows that the source tells apart by the new columns would be one row of the lake, and a delete would end it."""
    reader = Decoding(orders(columns=COLUMNS))
    row = {"id": 1, "region": "eu", "big": None}
    reader.send(*(postgres("c", 20 + number, after=row) for number in range(rows)), key={"id": 1})
    reader.send(*(postgres("c", 40 + number, after={**row, **grown}) for number in range(rows)), key=grown)
    reader.send(postgres("d", 60, before={**row, **grown}), key=grown)
    reader.send(postgres("u", 70, after=row), key={"id": 1})
    shown = ", ".join(grown)
    waiting = [
        f"the key of shop.public.orders is ({shown}), and its registered id is (id)" in why for why in reader.refused
    ]
    assert waiting == [True] * (rows + 1)
    assert [found["_cdc_op"] for found in reader.rows] == ["i"] * rows + ["u"]


@pytest.mark.parametrize(
    ("connector", "remedy"),
    [
        ("postgresql", 'run ALTER TABLE "public"."orders" REPLICA IDENTITY FULL'),
        ("mysql", "set binlog_row_image = FULL in the source"),
        ("mariadb", "set binlog_row_image = FULL in the source"),
        ("oracle", "have the source log whole old rows"),
    ],
)
def test_what_is_missing_of_old_rows_is_mended_by_the_source_that_wrote_them(connector: str, remedy: str) -> None:
    update = postgres("u", 20, after={"id": 1, "region": "eu", "big": "B"})
    update["source"]["connector"] = connector
    with_other_key, keyless = Decoding(orders(id=["region"], columns=COLUMNS)), Decoding(orders(columns=COLUMNS))
    with_other_key.send(update, key={"id": 1})
    keyless.send(update)
    (hidden,), (unwhole,) = with_other_key.refused, keyless.refused
    assert f"make id of shop.public.orders the columns of the key, or {remedy}" in hidden
    assert f"give id under shop.public.orders, or {remedy}" in unwhole
    assert {"REPLICA IDENTITY" in why for why in (hidden, unwhole)} == {connector == "postgresql"}


def test_an_update_says_that_a_column_of_the_id_has_another_name_by_now() -> None:
    def with_schema(event: Json) -> Json:
        fields = [{"field": name, "type": "int64"} for name in event["after"]]
        return {"schema": {"fields": [{"field": "after", "fields": fields}]}, "payload": event}

    reader = Decoding(orders(id=["id"]))
    reader.send(with_schema(postgres("c", 20, after={"id": 1, "n": 1})), key={"id": 1})
    reader.send(with_schema(postgres("u", 30, after={"number": 1, "n": 2})), key={"number": 1})
    (why,) = reader.refused
    assert "came without id, which is of its id: its events lack that column by now" in why
