"""B3: staging files to a published table, beside pyarrow; and a snapshot of many small tables beside that of one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.arms import Arm, Contest
from benchmarks.bench import OURS, Bench, plus
from benchmarks.claim_arms import ClaimWorld, our_pipeline
from benchmarks.claims import opened_world
from benchmarks.results import RowFigures
from benchmarks.slice_files import SCHEMA, values_of
from cdc_pipeline.areas import STAGING_AREA
from cdc_pipeline.lake.protocol import Compaction, LakePublication
from tests.support.lake import table_of
from tests.support.pipelines import opened_pipeline, pipeline_settings, set_up_and_consume, take_snapshot
from tests.support.postgres import fresh_database, fresh_store
from tests.support.streams import run_sql

PYARROW, MANY, ONE = "pyarrow read, sort, write", "all tables", "one table"
CREATE_SMALL = "CREATE TABLE small_{0} AS SELECT n AS id, md5(n::text) AS note FROM generate_series(1, {1}) AS n"
KEY_SMALL = "ALTER TABLE small_{0} ADD PRIMARY KEY (id)"
STAGED_FILES, SLOTS = 4, 2


def measure(bench: Bench) -> RowFigures:
    sizes = bench.sizes("B3")
    with publishing(bench, sizes["rows"]) as contest:
        published = bench.clockwork.measure(contest)
    with small_tables(bench, sizes["tables"], sizes["table_rows"]) as contest:
        small = bench.clockwork.measure(contest)
    values = plus({f"rows/s over {PYARROW}": published.speed(OURS, PYARROW)})
    if MANY in small.arms:
        values["seconds of a snapshot of many tables"] = small.arms[MANY].wall_seconds.median
    if {MANY, ONE} <= {*small.arms}:
        one = small.arms[ONE].wall_seconds.median
        values["many tables over as many times one"] = small.arms[MANY].wall_seconds.median / one / sizes["tables"]
    return RowFigures(contests=(published, small), values=values, sizes=sizes)


@contextmanager
def publishing(bench: Bench, rows: int) -> Iterator[Contest]:
    """The same staging files again and again, each time as another snapshot of one table."""
    with opened_world(bench, rows) as world:
        keys = stage(world)
        table = table_of(SCHEMA, name="bench.public.published")
        pipeline = our_pipeline(world, {})
        pipeline.lake.create_table(table)
        numbers = iter(range(1_000_000))

        def ours() -> int:
            name = f"bench-{next(numbers)}"
            work = Compaction(snapshot_id=name, attempt="1", staged_keys=keys, target_files=1, version="")
            files = pipeline.lake.compact(table, work)
            pipeline.lake.publish(table, LakePublication(snapshot_id=name, files=files, fence_number=0))
            return sum(file.rows for file in files)

        def plain() -> int:
            read = [pq.read_table(world.folder / "lake" / key) for key in keys]
            ordered = pa.concat_tables(read).sort_by(SCHEMA.key[0])
            pq.write_table(ordered, world.folder / "plain.parquet", compression="zstd")
            return int(ordered.num_rows)

        arms = (
            Arm(name=OURS, run=ours, check=checked(world, world.target(table))),
            Arm(name=PYARROW, run=plain, check=checked(world, f"parquet.`{world.folder / 'plain.parquet'}`")),
        )
        parameters = {"rows": rows, "staged files": STAGED_FILES}
        yield Contest(name="staging to published", rows=rows, arms=arms, parameters=parameters)


def stage(world: ClaimWorld) -> tuple[str, ...]:
    """Rows in no order, in some staging files."""
    ids = np.random.default_rng(world.bench.seed).permutation(world.rows) + 1
    keys = tuple(f"{STAGING_AREA}/bench/{number}.parquet" for number in range(STAGED_FILES))
    for key, part in zip(keys, np.array_split(ids, STAGED_FILES), strict=True):
        sink = pa.BufferOutputStream()
        rows = pa.table(values_of(pa.array(part), pa.array(part)))
        pq.write_table(rows, sink, compression="zstd", write_page_checksum=True, store_schema=False)
        world.objects.put_if_absent(key, sink.getvalue().to_pybytes())
    return keys


def checked(world: ClaimWorld, target: str) -> Callable[[], object]:
    query = f"SELECT count(*), sum(CAST(xxhash64({', '.join(SCHEMA.names)}) AS DECIMAL(38))) FROM {target}"
    session = world.session()
    return lambda: tuple(session.sql(query).collect()[0])


@contextmanager
def small_tables(bench: Bench, tables: int, rows: int) -> Iterator[Contest]:
    with ExitStack() as opened:
        url = opened.enter_context(fresh_database(bench.postgres))
        store_url = opened.enter_context(fresh_store(bench.postgres))
        run_sql(url, *(text.format(n, rows) for n in range(tables) for text in (CREATE_SMALL, KEY_SMALL)))
        listed = [{"name": f"public.small_{number}"} for number in range(tables)]
        settings = pipeline_settings(bench.folder(opened), url, listed)
        pipeline = opened.enter_context(opened_pipeline(settings, store_url=store_url, spark_url=bench.spark_url))
        set_up_and_consume(pipeline)
        names = pipeline.table_names()

        def taken(number: int) -> int:
            return sum(found.rows or 0 for found in take_snapshot(pipeline, *names[:number], slots=SLOTS))

        yield Contest(
            name="snapshot of small tables",
            rows=tables * rows,
            arms=(Arm(name=MANY, run=lambda: taken(tables)), Arm(name=ONE, run=lambda: taken(1), rows=rows)),
            parameters={"tables": tables, "rows of each": rows, "slots": SLOTS},
            warm_ups=0 if bench.scale == "full" else 1,
        )
