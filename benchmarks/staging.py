"""B2: pages of the source to staging files, beside a COPY that goes nowhere and a loop over a cursor."""

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.arms import Arm, Contest
from benchmarks.bench import OURS, Bench, plus
from benchmarks.consumer import CREATE_ORDERS, ROW
from benchmarks.memory import snapshot_peaks
from benchmarks.plain_loop import SCHEMA
from benchmarks.results import RowFigures
from cdc_pipeline.areas import DB_SNAPSHOT, STAGING_AREA
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import TableName
from cdc_pipeline.settings.postgres import PostgresSource
from cdc_pipeline.settings.work import SnapshotSettings
from cdc_pipeline.sources.postgres.copy_stream import TEXT_FORMAT
from cdc_pipeline.sources.postgres.page_ranges import PageRange, plan_ranges, range_query
from cdc_pipeline.sources.postgres.position import hold_position, snapshot_connection
from cdc_pipeline.sources.postgres.source import PostgresDatabase
from cdc_pipeline.steps import no_step
from cdc_pipeline.types import arrow_schema
from snapshot.snapshot_to_staging import SnapshotToStaging
from tests.support.postgres import fresh_database
from tests.support.streams import database_of, run_sql

COPY, CURSOR = "COPY to null", "cursor loop"
FILL = f"INSERT INTO orders {ROW} FROM generate_series(1, {{rows}}) AS n"
CONNECTIONS = 2
CURSOR_ROWS = 10_000
FILE_BYTES = SnapshotSettings().snapshot_file_bytes


class Null:
    """Takes what COPY writes and counts its rows."""

    def __init__(self) -> None:
        self.rows = 0

    def write(self, row: bytes) -> None:
        self.rows += row.endswith(b"\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSource:
    """A table of the source as of an exported snapshot, and its page ranges."""

    url: str
    exported: str
    ranges: tuple[PageRange, ...]

    def on_each(self, copy: Callable[[PageRange], int]) -> int:
        """The sum of what it returns for each range, on as many connections as a snapshot has by default."""
        with ThreadPoolExecutor(CONNECTIONS) as threads:
            return sum(threads.map(copy, self.ranges))


def measure(bench: Bench) -> RowFigures:
    """B2. Memory is that of a worker's process over a whole snapshot."""
    sizes = bench.sizes("B2")
    with ExitStack() as opened:
        source = opened.enter_context(held_source(bench, sizes["rows"]))
        folder = bench.folder(opened)
        contest = Contest(
            name="snapshot to staging",
            rows=sizes["rows"],
            arms=(
                Arm(name=COPY, run=lambda: source.on_each(lambda pages: copied(source, pages))),
                staging_arm(source, folder),
                Arm(
                    name=CURSOR,
                    run=lambda: looped(source, folder),
                    check=lambda: sum_of_ids(folder / "loop.parquet"),
                ),
            ),
            parameters={"rows": sizes["rows"], "columns": len(SCHEMA.columns), "connections": CONNECTIONS},
        )
        found = bench.clockwork.measure(contest)
    small, large = snapshot_peaks(bench, sizes["memory_rows"] // sizes["memory_times"], sizes["memory_rows"])
    values = {f"rows/s over {peer}": found.speed(OURS, peer) for peer in (COPY, CURSOR)}
    values |= {"peak of the worker in MB, small table": small / 1e6}
    values |= {"peak of the worker in MB, largest table": large / 1e6}
    return RowFigures(contests=(found,), values=plus(values), sizes=sizes)


@contextmanager
def held_source(bench: Bench, rows: int) -> Iterator[HeldSource]:
    with fresh_database(bench.postgres) as url:
        run_sql(url, CREATE_ORDERS, FILL.format(rows=rows), "VACUUM ANALYZE")
        with hold_position(url, "bench_snapshot", no_step) as held:
            with snapshot_connection(url, held.exported) as connection:
                ranges = plan_ranges(connection, orders_of(url), FILE_BYTES)
            yield HeldSource(url=url, exported=held.exported, ranges=tuple(ranges))


def orders_of(url: str) -> TableName:
    return TableName.parse(f"{database_of(url)}.public.orders")


def copied(source: HeldSource, pages: PageRange) -> int:
    null = Null()
    with snapshot_connection(source.url, source.exported) as connection, connection.cursor() as cursor:
        cursor.execute(TEXT_FORMAT)
        cursor.copy_expert(f"COPY ({range_query(connection, pages, SCHEMA)}) TO STDOUT (FORMAT csv)", null)
    return null.rows


def staging_arm(source: HeldSource, folder: Path) -> Arm:
    """The export of each page range, as a worker slot does it: it ends with staging files."""
    objects = LocalObjectStore(folder / "lake")
    verb = SnapshotToStaging(
        table=orders_of(source.url),
        schema=SCHEMA,
        snapshot_id="bench",
        update_time="updated_at",
        partition_by=(),
        source=PostgresDatabase(
            stream="bench", url=source.url, settings=PostgresSource(kind="postgres"), tables=(), on_step=no_step
        ),
        objects=objects,
        on_step=no_step,
    )

    def prepare(_: int) -> None:
        for area in (DB_SNAPSHOT, STAGING_AREA):
            shutil.rmtree(folder / "lake" / area, ignore_errors=True)

    def staged(pages: PageRange) -> int:
        return verb.export(source.exported, asdict(pages), f"{pages.first:06d}").rows

    return Arm(
        name=OURS,
        prepare=prepare,
        run=lambda: source.on_each(staged),
        check=lambda: sum_of_ids(folder / "lake" / STAGING_AREA),
    )


def sum_of_ids(path: Path) -> object:
    """Of a file, or of all files below a folder."""
    return pc.sum(pq.read_table(path, columns=[SCHEMA.key[0]], partitioning=None)[SCHEMA.key[0]]).as_py()


def looped(source: HeldSource, folder: Path) -> int:
    """What people write: a cursor on the server, Python values, a Parquet file, one connection."""
    rows, schema = 0, arrow_schema(SCHEMA)
    with (
        closing(psycopg2.connect(source.url)) as connection,
        connection.cursor("plain") as cursor,
        pq.ParquetWriter(folder / "loop.parquet", schema, compression="zstd") as writer,
    ):
        cursor.itersize = CURSOR_ROWS
        cursor.execute(f"SELECT {', '.join(SCHEMA.names)} FROM orders")
        while found := cursor.fetchmany(CURSOR_ROWS):
            writer.write_table(
                pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in found], schema)
            )
            rows += len(found)
    return rows
