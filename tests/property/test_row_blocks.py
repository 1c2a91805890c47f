"""Rows that are decoded column by column become the changes, versions and quarantined lines of rows that are not."""

import gzip
import io
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.files.change_folders import ChangeFolders
from cdc_pipeline.sources.files.source import FileSource
from cdc_pipeline.sources.known import StreamStart
from tests.support.change_files import ChangeFolder, Read, csv_text, json_lines

Row = Mapping[str, Any]
COLUMNS = {
    "id": "bigint",
    "part": "text",
    "amount": "numeric(12,2)",
    "at": "timestamp",
    "paid": "boolean",
    "note": "text",
}
FORMATS = st.fixed_dictionaries(
    {"format": st.just("dms")},
    optional={
        "time_column": st.just("ts"),
        "order_by": st.sampled_from((["seq"], ["ts", "seq"])),
    },
)
IDS = st.integers(0, 5) | st.sampled_from([None, 1 << 70, "7", "x"])
ROWS = st.fixed_dictionaries(
    {
        "Op": st.sampled_from("IIIIUUUDT?"),
        "ts": st.sampled_from(
            ["2026-01-01 10:00:00.000001", "2026-01-01T10:00:00Z", None, "soon", "1970-01-01 00:00:00"]
        ),
        "seq": st.integers(0, 9) | st.sampled_from([None, "a", "mysql-bin.000004"]),
        "id": IDS,
        "part": st.sampled_from(["a", "b", None, "é"]),
        "amount": st.sampled_from(["1.50", "1e2", "1.555", None, "x", "0"]),
        "at": st.sampled_from(["2026-01-01 10:00:00", "2026-01-01", "9999-12-31 23:59:59", None]),
        "paid": st.sampled_from(["t", "FALSE", "1", "?", None]),
        "note": st.sampled_from(["x", "", "__debezium_unavailable_value", None, '"', "\\"]),
        "more": st.sampled_from(["not declared", None]),
    }
)
USUAL = st.fixed_dictionaries(
    {
        "Op": st.sampled_from("IUD"),
        "ts": st.just("2026-01-01 10:00:00.000001"),
        "seq": st.integers(0, 9),
        "id": st.integers(0, 5),
        "part": st.sampled_from(["a", "b"]),
        "amount": st.just("2.50"),
        "at": st.just("2026-01-01 10:00:00"),
        "paid": st.just("t"),
        "note": st.just("x"),
        "more": st.none(),
    }
)
WHOLE = ("Op", "ts", "seq", "id", "part", "amount", "at", "paid", "note")
ID = st.sampled_from([["id"], ["id", "part"], []])
LEFT_OUT = st.sampled_from([(), ("note",), ("note", "at"), ("id",), ("ts",), ("Op",)])


class LineByLine(ChangeFolders):
    """Decodes every row as a line, as it decodes a quarantined one."""

    def rows_stream(self, decoder: DebeziumDecoder, start: StreamStart) -> None:
        del decoder, start


@dataclass(slots=True, kw_only=True)
class LineFolder(ChangeFolder):
    def opened(self) -> FileSource:
        source = ChangeFolder.opened(self)
        found = source.transport
        assert isinstance(found, ChangeFolders)
        by_line = LineByLine(
            objects=found.objects, settings=found.settings, folders=found.folders, on_step=found.on_step
        )
        return replace(source, transport=by_line)


def shown(read: Read) -> tuple[list[str], list[str]]:
    """Changes with their versions, and unfit lines, without the order in which they were decoded."""
    changes = [f"{version} {change}" for version, change in zip(read.versions, read.changes, strict=True)]
    unfit = [f"{each.version} {each.column} {each.reason} {each.payload}" for each in read.unfit]
    return sorted(changes), sorted(unfit)


def continues(read: Read, ends: Collection[int]) -> list[object]:
    """Where reading goes on after these stream positions."""
    nothing = {"shop.public.orders": f"{0:032x}"}
    return [(read.places[end].offset, {**nothing, **read.places[end].last_position}) for end in sorted(ends)]


def parquet_text(rows: list[Row]) -> bytes:
    sink = io.BytesIO()
    names = list(rows[0])
    table = pa.table({name: pa.array([_text(row[name]) for row in rows], pa.string()) for name in names})
    pq.write_table(table, sink)
    return sink.getvalue()


def _text(value: object) -> str | None:
    return None if value is None else str(value)


WRITTEN = {
    ".jsonl": json_lines,
    ".csv": csv_text,
    ".csv.gz": lambda rows: gzip.compress(csv_text(rows)),
    ".parquet": parquet_text,
}


@settings(deadline=None, max_examples=50)
@example(
    rows=[
        dict(zip(WHOLE, ["T", "2026-01-01 10:00:00", 0, 0, "a", "1.50", "2026-01-01 10:00:00", "t", "x"], strict=True))
    ],
    source={"format": "dms"},
    late=False,
    left_out=(),
    before=False,
    key=[],
    suffix=".csv",
).via("a truncate that comes first in a table without an id")
@given(
    rows=st.lists(ROWS | USUAL, min_size=1, max_size=40) | st.lists(USUAL, min_size=20, max_size=40),
    source=FORMATS,
    late=st.booleans(),
    left_out=LEFT_OUT,
    before=st.booleans(),
    key=ID,
    suffix=st.sampled_from(sorted(WRITTEN)),
)
def test_a_block_of_rows_is_decoded_as_its_lines_are(
    *,
    rows: list[dict[str, Any]],
    source: dict[str, Any],
    late: bool,
    left_out: tuple[str, ...],
    before: bool,
    key: list[str],
    suffix: str,
) -> None:
    own = {**source, "late_by": "1h"} if late and "order_by" in source else source
    table = (
        {"name": "shop.public.orders", "id": key, "columns": COLUMNS}
        if key
        else {"name": "shop.public.orders", "columns": COLUMNS}
    )
    with_old = [{**row, "BI_id": row["id"] if number % 3 else 3} if before else row for number, row in enumerate(rows)]
    given_rows = [{name: value for name, value in row.items() if name not in left_out} for row in with_old]
    with TemporaryDirectory() as path:
        blocks, lines = (kind(folder=Path(path), source=own, tables=(table,)) for kind in (ChangeFolder, LineFolder))
        blocks.write(f"public/orders/1{suffix}", WRITTEN[suffix](given_rows))
        read, expected = blocks.read(), lines.read()
    assert shown(read) == shown(expected)
    assert continues(read, expected.places) == continues(expected, expected.places)
