"""Odd rows of CSV and Avro: a row that cannot be read is quarantined alone."""

import gzip
import io
from datetime import UTC, date, datetime
from pathlib import Path
from uuid import UUID
from zlib import crc32

import fastavro
import pyarrow as pa
import pytest

from cdc_pipeline.sources.debezium.rows import LINE
from tests.support.change_files import ChangeFolder, avro_bytes, csv_text, json_lines
from tests.support.debezium_lines import PLACEHOLDER


@pytest.mark.parametrize("header", [b"", b"Op,ts,id,name,amount\n", b"\xef\xbb\xbfOp,ts,id,name,amount\n"])
def test_a_row_of_csv_that_is_not_utf8_is_quarantined_also_if_it_has_too_few_fields(
    tmp_path: Path, header: bytes
) -> None:
    folder = ChangeFolder(
        folder=tmp_path, source={"format": "dms", "time_column": "ts", "csv": {"header": bool(header), "null": "ø"}}
    )
    parts = ["1,Zoë,1.00", "2,Zoë,1.00", "3,Zoë", "4,ø,1.00"]
    lines = [f"I,2026-01-01 10:00:00,{part}\n".encode("utf-8" if part[0] in "14" else "latin1") for part in parts]
    folder.write("public/orders/1" + ".csv", header + b"".join(lines))
    read = folder.read()
    assert [(row["id"], row["name"]) for _, row in read.changes] == [(1, "Zoë"), (4, None)]
    assert [unfit.reason.partition(".csv line ")[2] for unfit in read.unfit] == [
        "2: the value of name does not fit the lake's text",
        "3: has 4 fields, where the file has 5 columns",
    ]
    assert all("Zo\\udceb" in (unfit.payload[LINE] or "") for unfit in read.unfit)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@pytest.mark.parametrize("order_by", [[], ["seq"]])
def test_a_text_that_equals_debeziums_placeholder_is_a_text_of_dms_and_stands_for_another_in_rows_of_ones_own(
    tmp_path: Path, suffix: str, order_by: list[str]
) -> None:
    rows = [{"Op": operation, "seq": 1, "id": 1, "name": PLACEHOLDER} for operation in "IU"]
    for format_, folder, known in (("dms", "public/orders", PLACEHOLDER), ("upserts", "orders", None)):
        source = {"format": format_, "operation_column": "Op", "order_by": order_by}
        files = ChangeFolder(folder=tmp_path / format_, source=source)
        files.write(f"{folder}/1{suffix}", csv_text(rows) if suffix == ".csv" else json_lines(rows))
        assert [row["name"] for _, row in files.read().changes] == [known] * 2


def test_an_odd_value_of_avro_is_quarantined_with_its_row(tmp_path: Path) -> None:
    kinds = {
        "day": ("int", "date", 8_000_000),
        "at": ("long", "timestamp-micros", 2**63 - 1),
        "hour": ("long", "time-micros", 86_400_000_000),
        "number": ("string", "uuid", "none"),
    }
    types = {"id": "int", "day": "date", "at": "timestamptz", "hour": "time", "number": "uuid"}
    fields = [
        {"name": name, "type": ["null", {"type": kind, "logicalType": of}]} for name, (kind, of, _) in kinds.items()
    ]
    schema = {"type": "record", "name": "row", "fields": [{"name": "id", "type": "int"}, *fields]}
    odd = [{"id": 1, name: value} for name, (_, _, value) in kinds.items()]
    good = {"id": 2, "day": date(2026, 1, 1), "number": UUID(int=1)}
    table = {"name": "shop.public.orders", "id": ["id"], "columns": types}
    folder = ChangeFolder(folder=tmp_path, source={"format": "upserts"}, tables=(table,))
    folder.write("orders/1.avro", avro_bytes([*odd, good], schema))
    read = folder.read()
    assert [(row["id"], row["day"]) for _, row in read.changes] == [(2, date(2026, 1, 1))]
    assert [unfit.reason.partition(": ")[2].partition(": ")[0] for unfit in read.unfit] == [
        "has a value that cannot be read"
    ] * len(odd)
    assert "8000000" in (read.unfit[0].payload[LINE] or "")


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("unit", ["millis", "micros"])
def test_a_moment_of_avro_is_a_time_without_zone_as_it_is_in_parquet(tmp_path: Path, unit: str, count: int) -> None:
    moment = {"type": "long", "logicalType": f"timestamp-{unit}"}
    names = ("at", "zoned")
    fields = [{"name": "id", "type": "int"}, *({"name": name, "type": moment} for name in names)]
    table = {
        "name": "shop.public.orders",
        "id": ["id"],
        "columns": {"id": "int", "at": "timestamp", "zoned": "timestamptz"},
    }
    at = datetime(2026, 1, 2, 10, 0, 0, 500_000, tzinfo=UTC)
    folder = ChangeFolder(folder=tmp_path, source={"format": "upserts"}, tables=(table,))
    rows = [{"id": number, "at": at, "zoned": at} for number in range(count)]
    folder.write("orders/1.avro", avro_bytes(rows, {"type": "record", "name": "row", "fields": fields}))
    read = folder.read()
    assert read.unfit == []
    assert [(row["at"], row["zoned"]) for _, row in read.changes] == [(at.replace(tzinfo=None), at)] * count


def compressed_avro(codec: str, blocks: list[list[dict[str, int]]], *, check: int = 0) -> bytes:
    """Blocks as Avro's specification has them: behind snappy's bytes is the checksum of the records."""
    schema = {"type": "record", "name": "row", "fields": [{"name": "id", "type": "int"}]}
    header = avro_bytes([], schema).replace(b"\x08null", bytes([2 * len(codec)]) + codec.encode())
    sink = io.BytesIO()
    for records in blocks:
        plain = io.BytesIO()
        for record in records:
            fastavro.schemaless_writer(plain, schema, record)
        content = pa.compress(plain.getvalue(), codec="zstd" if codec == "zstandard" else codec, asbytes=True)
        if codec == "snappy":
            content += (crc32(plain.getvalue()) ^ check).to_bytes(4)
        fastavro.schemaless_writer(sink, {"type": "long"}, len(records))
        fastavro.schemaless_writer(sink, {"type": "bytes"}, content)
        sink.write(header[-16:])
    return header + sink.getvalue()


@pytest.mark.parametrize("codec", ["snappy", "zstandard"])
def test_compressed_avro_is_read_and_stops_its_folder_if_a_byte_of_it_is_wrong(tmp_path: Path, codec: str) -> None:
    blocks = [[{"id": number} for number in range(size)] for size in (3, 500)]
    folder = ChangeFolder(folder=tmp_path, source={"format": "upserts"})
    content = compressed_avro(codec, blocks)
    damaged = [content[:-17] + bytes([content[-17] ^ 255]) + content[-16:], content[:-30] + content[-16:]]
    for wrong in (*damaged, compressed_avro(codec, blocks, check=1) if codec == "snappy" else content[:-40]):
        folder.write("orders/1.avro", wrong)
        read = folder.read()
        assert read.changes == []
        assert "the file orders/1.avro cannot be read" in str(read.error)
    folder.write("orders/1.avro", content)
    assert [row["id"] for _, row in folder.read().changes] == [*range(3), *range(500)]


def test_avro_in_gzip_that_lacks_any_byte_of_its_end_stops_its_folder(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "row", "fields": [{"name": "id", "type": "int"}]}
    content = gzip.compress(avro_bytes([{"id": 1}], schema))
    folder = ChangeFolder(folder=tmp_path, source={"format": "upserts"})
    for size in range(len(content)):
        folder.write("orders/1.avro.gz", content[:size])
        read = folder.read()
        assert (read.changes, "cannot be read" in str(read.error)) == ([], True), size
    folder.write("orders/1.avro.gz", content)
    assert len(folder.read().changes) == 1


def test_a_record_with_the_key_of_unread_rows_is_quarantined_and_the_key_is_named(tmp_path: Path) -> None:
    folder = ChangeFolder(folder=tmp_path, source={"format": "upserts"})
    folder.write("orders/1.jsonl", json_lines([{"id": 1, "_cdc_unread": "x"}, {"id": 2}]))
    read = folder.read()
    assert [row["id"] for _, row in read.changes] == [2]
    assert [unfit.reason for unfit in read.unfit] == [
        "orders/1.jsonl line 1: has the key _cdc_unread, which only rows that cannot be read may have"
    ]
