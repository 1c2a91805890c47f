"""Decimals that Debezium writes as bytes without their schema (`decimal.handling.mode = precise`, its default)."""

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cdc_pipeline.record import TableName
from cdc_pipeline.sources.known import KnownTable
from tests.support.change_files import ChangeFolder, Read, Row, json_lines
from tests.support.debezium_lines import PLACEHOLDER
from tests.support.decoding import Decoding, KeptText, postgres
from tests.support.decoding import orders as listed

ORDERS = TableName.parse("shop.public.orders")
BYTES = "decimals of shop.public.orders come as bytes, without the schema that says their scale"
MANY = 20
"""So many events are looked at together."""


def orders(folder: Path, type_: str = "numeric(12,2)", *, key: Sequence[str] = ("id",)) -> ChangeFolder:
    table = {"name": str(ORDERS), "id": list(key), "columns": {"id": "int", "price": type_}}
    return ChangeFolder(folder=folder, source={"format": "debezium"}, tables=[table])


def event(operation: str, row: Row, *, is_of_debezium: bool = True) -> Row:
    source = {"connector": "mysql", "db": "shop", "schema": "public", "table": "orders"}
    if is_of_debezium:
        source["version"] = "3.4.0.Final"
    before, after = (row, None) if operation == "d" else (None, row)
    return {"op": operation, "before": before, "after": after, "source": source}


def read(orders: ChangeFolder, values: Sequence[object], *, is_of_debezium: bool = True) -> Read:
    rows = [{"id": number, "price": value} for number, value in enumerate(values)]
    return read_events(orders, [event("c", row, is_of_debezium=is_of_debezium) for row in rows])


def read_events(orders: ChangeFolder, events: Sequence[Row]) -> Read:
    orders.write("1.jsonl", json_lines(events))
    return orders.read()


def prices(found: Read) -> list[str]:
    return [str(row["price"]) for _, row in found.changes]


@pytest.mark.parametrize("count", [1, MANY])
@pytest.mark.parametrize(
    ("values", "kept"),
    [
        (["Ag==", "1234"], []),
        (["+123", "1234"], []),
        (["12e4", "1e23", "12E4"], []),
        (["9.50", "1234", "1E+5", "-3"], ["9.50", "1234.00", "100000.00", "-3.00"]),
        (["1234", "9.50"], ["1234.00", "9.50"]),
        ([None, "Ag==", "9.50", "1234"], ["None", "9.50", "1234.00"]),
        (["9.50", "Ag==", "1234"], ["9.50"]),
        (["1234", "Ag==", "1234"], ["1234.00"]),
    ],
    ids=["bytes", "plus", "exponents", "texts", "texts at last", "mended", "changed", "bytes at last"],
)
def test_bytes_are_quarantined_also_those_that_look_like_numbers_until_a_number_shows_texts(
    values: list[str | None], kept: list[str], count: int, tmp_path: Path
) -> None:
    with capture_logs() as logs:
        found = read(orders(tmp_path), [value for value in values for _ in range(count)])
    assert prices(found) == [text for text in kept for _ in range(count)]
    assert len(found.unfit) == (len(values) - len(kept)) * count
    assert all(BYTES in each.reason for each in found.unfit)
    assert [log["event"] for log in logs if log["log_level"] == "error"] == [
        "the table's lines are quarantined"
    ] * bool(found.unfit)


def test_a_delete_takes_the_id_of_a_row_whose_other_columns_are_bytes(tmp_path: Path) -> None:
    found = read_events(
        orders(tmp_path), [event("d", {"id": 1, "price": "Ag=="}), event("c", {"id": 2, "price": "1234"})]
    )
    assert found.changes == [("d", {"id": 1, "price": None})]
    assert BYTES in found.unfit[0].reason


def test_the_old_row_of_a_key_change_goes_if_its_create_without_headers_has_bytes(tmp_path: Path) -> None:
    halves = [
        postgres("d", 20, before={"id": 1, "price": None}),
        postgres("c", 20, after={"id": 2, "price": "Ag==", "big": PLACEHOLDER}),
    ]
    for half in halves:
        half["source"]["version"] = "3.4.0.Final"
    found = read_events(orders(tmp_path), halves)
    assert found.changes == [("d", {"id": 1, "price": None})]
    assert [BYTES in each.reason for each in found.unfit] == [True]


@pytest.mark.parametrize("key", [["price"], []], ids=["id", "keyless"])
def test_a_delete_that_needs_a_column_in_bytes_is_quarantined(key: list[str], tmp_path: Path) -> None:
    rows = [{"id": 1, "price": "Ag=="}, {"id": 2, "price": "1234"}]
    found = read_events(orders(tmp_path, key=key), [event("d", row) for row in rows])
    assert found.changes == []
    assert [BYTES in each.reason for each in found.unfit] == [True, True]


def test_a_delete_whose_key_alone_has_bytes_is_quarantined(tmp_path: Path) -> None:
    deletes = [
        {"key": {"price": text}, "value": {**event("d", {}), "before": None}, "headers": None}
        for text in ("Ag==", "1234")
    ]
    found = read_events(orders(tmp_path, key=["price"]), deletes)
    assert found.changes == []
    assert [BYTES in each.reason for each in found.unfit] == [True, True]


def test_bytes_of_an_unsigned_number_are_quarantined_likewise(tmp_path: Path) -> None:
    found = read(orders(tmp_path, "bigint"), ["Ag==", "1234", 5, "1234"])
    assert prices(found) == ["5", "1234"]
    assert [BYTES in each.reason for each in found.unfit] == [True, True]


@pytest.mark.parametrize("type_", ["numeric(8,0)", "bigint"])
def test_ten_different_texts_in_a_row_that_look_like_numbers_are_numbers(type_: str, tmp_path: Path) -> None:
    """Dates as numbers never show anything else."""
    dates = [f"202401{day}" for day in range(10, 30)]
    found = read(orders(tmp_path, type_), [*dates, "Ag==", *dates[:9], "Ag==", *dates])
    assert prices(found) == [*dates, *dates[9:]]
    assert all(BYTES in each.reason for each in found.unfit)


def test_bytes_in_one_stream_partition_show_what_the_others_have() -> None:
    decoding = Decoding(listed(id=["id"], columns={"id": "int", "price": "numeric(12,2)"}), partitions=2)

    def send(partition: int, *texts: str) -> None:
        for place, text in enumerate(texts, start=100 * len(decoding.events)):
            event = postgres("c", place, after={"id": place, "price": text})
            event["source"]["version"] = "3.4.0.Final"
            decoding.send(event, partition=partition)

    send(1, "9.50", "9.50")
    send(0, "Ag==")
    send(1, "1234")
    assert [str(row["price"]) for row in decoding.rows] == ["9.50", "9.50"]
    assert [BYTES in reason for reason in decoding.refused] == [True, True]


def test_a_placeholder_and_infinity_are_no_bytes(tmp_path: Path) -> None:
    found = read(orders(tmp_path, "numeric"), ["Infinity", b64encode(PLACEHOLDER.encode()).decode(), "1234"])
    assert prices(found) == ["Infinity", "None", "1234"]


def test_texts_that_debezium_did_not_write_are_what_they_say(tmp_path: Path) -> None:
    found = read(orders(tmp_path), ["Ag==", "+123", "12e4"], is_of_debezium=False)
    assert prices(found) == ["123.00", "120000.00"]
    assert "does not fit the lake's" in found.unfit[0].reason


def test_bytes_that_look_like_numbers_stay_in_quarantine_beside_others(tmp_path: Path) -> None:
    """Bytes alone show what the others are."""
    folder = orders(tmp_path)
    kept = [
        KeptText(quarantine_id=number, event=each) for number, each in enumerate(read(folder, ["Ag==", "1234"]).unfit)
    ]
    (decoded,) = folder.opened().decode_quarantined(
        KnownTable(name=ORDERS, source_id=0, key=("id",), published_as=""), kept, columns=(), stream_partitions=[0]
    )
    assert (decoded.fitting, sorted(decoded.refused)) == ([], [0, 1])
