"""Bytes in change files of AWS DMS: hexadecimal digits behind 0x. Digits alone may be base64, too."""

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from tests.support.change_files import ChangeFolder
from tests.unit.sources.test_change_files import KINDS

TABLE = {"name": "shop.public.orders", "id": ["id"], "columns": {"id": "bytea", "octets": "bytea", "name": "text"}}
GOOD = {
    "0x": b"",
    "0x010203": b"\1\2\3",
    "0xABcdef01": b"\xab\xcd\xef\1",
    r"\x0102": b"\1\2",
    "AP8=": b"\0\xff",
    "0x0AAQAAAAAAAAAAAA==": b64decode("0x0AAQAAAAAAAAAAAA=="),
}


def row(number: int, octets: str, operation: str = "I", **more: str | None) -> dict[str, Any]:
    return {"Op": operation, "id": f"0x{number:04x}", "octets": octets, "name": "0x01", **more}


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("order_by", [[], ["name"]])
def test_bytes_are_the_digits_behind_0x_and_digits_alone_are_quarantined(
    tmp_path: Path, suffix: str, order_by: list[str]
) -> None:
    rows = [row(number, octets) for number, octets in enumerate([*GOOD, "AABBCCDD", "01"])]
    folder = ChangeFolder(folder=tmp_path, source={"format": "dms", "order_by": order_by}, tables=(TABLE,))
    folder.write("public/orders/1" + suffix, KINDS[suffix](rows))
    read = folder.read()
    assert {(each["id"], each["octets"], each["name"]) for _, each in read.changes} == {
        (number.to_bytes(2), octets, "0x01") for number, octets in enumerate(GOOD.values())
    }
    assert len(read.unfit) == 2
    assert all("may be hexadecimal digits or base64 in octets" in unfit.reason for unfit in read.unfit)


def test_a_before_image_has_its_bytes_likewise(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source={"format": "dms"}, tables=(TABLE,))
    rows = [
        row(2, "0x02", "U", BI_id="0x0001"),
        row(9, "0x02", "D", BI_id="0x0003"),
        row(4, "0x04", "U", BI_id="0x0004"),
    ]
    folder.write("public/orders/1.csv", KINDS[".csv"](rows))
    read = folder.read()
    assert sorted((operation, each["id"]) for operation, each in read.changes) == [
        *(("d", b"\0\1"), ("d", b"\0\3")),
        *(("m", b"\0\2"), ("u", b"\0\4")),
    ]


def test_other_formats_keep_base64_that_begins_so(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source={"format": "upserts"}, tables=(TABLE,))
    folder.write("orders/1.jsonl", KINDS[".jsonl"]([{"id": "AA==", "octets": "0x01"}]))
    assert [each["octets"] for _, each in folder.read().changes] == [b"\xd3\x1d\x35"]


@pytest.mark.parametrize("order_by", [[], ["name"]])
def test_bytes_of_parquet_are_bytes_also_if_their_base64_looks_like_digits(tmp_path: Path, order_by: list[str]) -> None:
    """A key change is read as a line. The base64 of these is 0xAB and DEAD."""
    rows = [
        {"Op": "U", "BI_id": bytes([number]), "id": octets, "octets": octets, "name": "x"}
        for number, octets in enumerate((b64decode("0xAB"), b64decode("DEAD"), b"", b"\\x01"))
    ]
    folder = ChangeFolder(folder=tmp_path, source={"format": "dms", "order_by": order_by}, tables=(TABLE,))
    folder.write("public/orders/1.parquet", KINDS[".parquet"](rows))
    read = folder.read()
    assert read.unfit == []
    moved = [each for operation, each in read.changes if operation == "m"]
    assert [(each["id"], each["octets"]) for each in moved] == [(row["id"], row["octets"]) for row in rows]


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("order_by", [[], ["name"]])
@pytest.mark.parametrize("more", [{}, {"BI_id": "0x0000", "BI_octets": "01"}])
def test_a_delete_needs_the_bytes_of_its_id_alone(
    tmp_path: Path, suffix: str, order_by: list[str], more: dict[str, str]
) -> None:
    """Left out, the row would stay in the lake."""
    folder = ChangeFolder(folder=tmp_path, source={"format": "dms", "order_by": order_by}, tables=(TABLE,))
    rows = [row(0, "01", "D", **more), {**row(0, "0x02", "D", **more), **dict.fromkeys(["id", *more], "01")}]
    folder.write("public/orders/1" + suffix, KINDS[suffix](rows))
    read = folder.read()
    assert [(operation, each["id"]) for operation, each in read.changes] == [("d", b"\0\0")]
    assert ["hexadecimal digits or base64 in id" in unfit.reason for unfit in read.unfit] == [True]
