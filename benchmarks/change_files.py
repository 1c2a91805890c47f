"""files: rows per second from change files to registered slices, beside the format's own reader into nothing."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.arms import Arm, Contest
from benchmarks.bench import OURS, Bench, plus
from benchmarks.consumer import register
from benchmarks.results import RowFigures
from cdc_pipeline.settings import Settings
from tests.support.pipelines import opened_pipeline, set_up_and_consume
from tests.support.postgres import fresh_store

READER = "reader into nothing"
COLUMNS = {
    "order_id": "bigint",
    "customer_id": "bigint",
    "status": "text",
    "amount": "numeric(12,2)",
    "paid": "boolean",
    "day": "date",
    "created_at": "timestamp",
    "updated_at": "timestamp",
    "ratio": "float8",
    "note": "text",
}
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    """`file`: of one round, below the folder of all files. `read`: reads a file into nothing, returns its rows."""

    source: dict[str, Any]
    file: str
    write: Callable[[Path, Iterable[Row]], None]
    read: Callable[[Path], int]


def measure(bench: Bench) -> RowFigures:
    sizes, contests = bench.sizes("files"), []
    for name in KINDS:
        with contest(bench, name, sizes["rows"]) as found:
            contests.append(bench.clockwork.measure(found))
    values = {f"{found.name}: rows/s over its reader": found.speed(OURS, READER) for found in contests}
    return RowFigures(contests=tuple(contests), values=plus(values), sizes=sizes)


@contextmanager
def contest(bench: Bench, name: str, rows: int) -> Iterator[Contest]:
    """Each round reads one more file of `rows` rows; writing it is outside the clock."""
    kind = KINDS[name]
    with ExitStack() as opened:
        folder, store_url = bench.folder(opened), opened.enter_context(fresh_store(bench.postgres))
        settings = Settings.model_validate(
            {
                "folder": folder,
                "name": "shop",
                "lake": "lake",
                "slice_length": "1h",
                "source": {"path": "files", "kind": "change_files", **kind.source},
                "tables": [{"name": "shop.public.orders", "id": ["order_id"], "columns": COLUMNS}],
            }
        )
        written: list[Path] = []

        def prepare(number: int) -> None:
            path = folder / "files" / kind.file.format(number=number)
            path.parent.mkdir(parents=True, exist_ok=True)
            kind.write(path, changes(number, rows))
            written.append(path)

        prepare(0)
        pipeline = opened.enter_context(opened_pipeline(settings, store_url=store_url, spark_url=""))
        set_up_and_consume(pipeline)

        yield Contest(
            name=name,
            rows=rows,
            arms=(
                Arm(name=READER, run=lambda: kind.read(written[-1])),
                Arm(name=OURS, run=lambda: register(pipeline, store_url)),
            ),
            prepare=lambda number: prepare(number + 1),
            parameters={"rows": rows, "columns": len(COLUMNS)},
        )


def changes(number: int, rows: int) -> Iterator[Row]:
    """A tenth of them inserts, the others updates."""
    for place in range(number * rows, (number + 1) * rows):
        moment = f"2026-01-01 {place // 3600 % 24:02d}:{place // 60 % 60:02d}:{place % 60:02d}.{place % 1_000:03d}000"
        yield {
            "Op": "U" if place % 10 else "I",
            "ts": "2026-01-01 10:00:00.000000",
            "order_id": place // 2,
            "customer_id": place % 50_000,
            "status": ("new", "paid", "shipped", "returned")[place % 4],
            "amount": f"{place % 100_000}.{place % 100:02d}",
            "paid": "true" if place % 2 else "false",
            "day": f"2024-{place % 12 + 1:02d}-{place % 28 + 1:02d}",
            "created_at": moment,
            "updated_at": moment,
            "ratio": place / 8,
            "note": f"a note of some length about order {place}",
        }


def _write_csv(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["Op", "ts", *COLUMNS])
        writer.writeheader()
        writer.writerows(rows)


def _write_parquet(path: Path, rows: Iterable[Row]) -> None:
    """With the types that a reader of CSV finds, as AWS DMS writes them."""
    _write_csv(path.with_suffix(".tmp"), rows)
    pq.write_table(pyarrow.csv.read_csv(path.with_suffix(".tmp")), path)


def _write_json(path: Path, rows: Iterable[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _write_debezium(path: Path, rows: Iterable[Row]) -> None:
    _write_json(path, (debezium_event(place, row) for place, row in enumerate(rows)))


def debezium_event(place: int, row: Row) -> Row:
    own = {name: row[name] for name in COLUMNS}
    where = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "orders", "snapshot": "false"}
    log = {"txId": place // 100, "lsn": 1_000 + place, "ts_ms": 1_767_261_600_000, "version": "3.0.0.Final"}
    return {"before": None, "after": own, "op": "c" if row["Op"] == "I" else "u", "source": {**where, **log}}


def _read_csv(path: Path) -> int:
    with path.open(newline="", encoding="utf-8") as file:
        return sum(1 for _ in csv.reader(file)) - 1


def _read_parquet(path: Path) -> int:
    with pq.ParquetFile(path) as file:
        return sum(int(batch.num_rows) for batch in file.iter_batches())


def _read_json(path: Path) -> int:
    with path.open("rb") as file:
        return len([json.loads(line)["op" if b'"op"' in line else "Op"] for line in file])


_DMS = {"format": "dms", "time_column": "ts"}
_UPSERTS = {"format": "upserts", "operation_column": "Op", "time_column": "ts"}
KINDS = {
    "DMS CSV": FileKind(source=_DMS, file="public/orders/{number:06d}.csv", write=_write_csv, read=_read_csv),
    "DMS Parquet": FileKind(
        source=_DMS, file="public/orders/{number:06d}.parquet", write=_write_parquet, read=_read_parquet
    ),
    "JSON Lines": FileKind(source=_UPSERTS, file="orders/{number:06d}.jsonl", write=_write_json, read=_read_json),
    "Debezium's JSON Lines": FileKind(
        source={"kind": "debezium_files"}, file="0/{number:06d}.jsonl", write=_write_debezium, read=_read_json
    ),
}
