"""B11: processor seconds per million hot events, from the commit in the source to the lake, without a scheduler."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.arms import Arm, Contest
from benchmarks.bench import OURS, Bench
from benchmarks.claim_arms import WrongRowsError, filling
from benchmarks.consumer import CLIENT, CREATE_ORDERS, REGISTERED, ROW, SLOTS, receive
from benchmarks.memory import snapshot_peaks
from benchmarks.results import RowFigures
from cdc_pipeline.lake.quoting import table_at
from cdc_pipeline.lake.session import connect
from tests.support.command_line import query
from tests.support.pipelines import consume, opened_pipeline, pipeline_settings, set_up_and_consume, take_snapshot
from tests.support.postgres import fresh_database, fresh_store
from tests.support.streams import run_sql

FILL = f"INSERT INTO orders {ROW} FROM generate_series(1, {{rows}}) AS n"
LOAD = """
DO $$ BEGIN FOR part IN 1 .. {parts} LOOP
    UPDATE orders SET amount = amount + 1, updated_at = now()
        WHERE order_id > {first} + (part % {blocks}) * {block}
          AND order_id <= {first} + (part % {blocks} + 1) * {block};
    COMMIT;
END LOOP; END $$
"""
"""Updates alone, each transaction one block of the last ids."""
_BLOCKS = 20
LIMITS = "received into nothing, and appended"


def measure(bench: Bench) -> RowFigures:
    sizes = bench.sizes("B11")
    with contest(bench, sizes) as found:
        figures = bench.clockwork.measure(found)
    values = {}
    if OURS in figures.arms:
        ours = figures.arms[OURS]
        values["processor seconds per million events, with the source's server"] = ours.processor_seconds_per_million
        without = ours.processor_seconds_of["client"] + ours.processor_seconds_of.get("spark", 0.0)
        values["processor seconds per million events"] = without / ours.rows * 1e6
        if LIMITS in figures.arms:
            limits = figures.arms[LIMITS].processor_seconds_per_million
            values["processor seconds over those of the limits"] = ours.processor_seconds_per_million / limits
    small, large = snapshot_peaks(bench, sizes["memory_rows"] // sizes["memory_times"], sizes["memory_rows"])
    values["peak memory over table size: exponent"] = math.log(large / small) / math.log(sizes["memory_times"])
    return RowFigures(contests=(figures,), values=values, sizes=sizes)


@contextmanager
def contest(bench: Bench, sizes: dict[str, int]) -> Iterator[Contest]:
    block = max(1, min(1_000, sizes["rows"] // _BLOCKS))
    parts = max(1, sizes["events"] // block)
    with ExitStack() as opened:
        databases = {name: opened.enter_context(fresh_database(bench.postgres)) for name in bench.variants()}
        for url in databases.values():
            run_sql(url, CREATE_ORDERS, FILL.format(rows=sizes["rows"]))
        first = next(iter(databases.values()))
        ours = [path_arm(bench, opened, name, url, sizes["slice_rows"]) for name, url in databases.items()]
        limit = limit_arm(bench, opened, first, parts * block)
        statement = LOAD.format(parts=parts, blocks=_BLOCKS, block=block, first=sizes["rows"] - _BLOCKS * block)

        def prepare(_: int) -> None:
            run_sql(first, f"SELECT pg_replication_slot_advance('{SLOTS[CLIENT]}', pg_current_wal_lsn())")
            for url in databases.values():
                run_sql(url, statement)

        yield Contest(
            name="events from the source into the lake",
            rows=parts * block,
            arms=(*ours, limit),
            prepare=prepare,
            parameters={name: sizes[name] for name in ("rows", "events", "slice_rows")},
        )


def limit_arm(bench: Bench, opened: ExitStack, url: str, rows: int) -> Arm:
    """PostgreSQL's client receives the events into nothing, and Spark appends as many rows to a table."""
    session = connect(bench.spark_url)
    opened.callback(session.stop)
    target = table_at(f"file://{bench.folder(opened)}/appended")
    session.sql(f"CREATE TABLE {target} USING delta AS {filling(1)}").collect()
    run_sql(url, f"SELECT pg_create_logical_replication_slot('{SLOTS[CLIENT]}', 'pgoutput')")

    def run() -> int:
        seen = receive(bench.postgres, url, rows)
        session.sql(f"INSERT INTO {target} {filling(seen)}").collect()
        return seen

    return Arm(name=LIMITS, run=run)


def path_arm(bench: Bench, opened: ExitStack, name: str, url: str, slice_rows: int) -> Arm:
    """Consumer and worker in one process; the lake equals the source at the end, or there are no figures."""
    store_url = opened.enter_context(fresh_store(bench.postgres))
    more = bench.variants()[name]
    source = {"slice_rows": slice_rows, **more.get("source", {})}
    settings = pipeline_settings(bench.folder(opened), url, [{"name": "public.orders"}], **{**more, "source": source})
    pipeline = opened.enter_context(opened_pipeline(settings, store_url=store_url, spark_url=bench.spark_url))
    set_up_and_consume(pipeline)
    (table,) = pipeline.table_names()
    take_snapshot(pipeline, table)

    def run() -> int:
        ((before,),) = query(store_url, REGISTERED)
        consume(pipeline)
        pipeline.slice_worker().slice_to_lake(table)
        ((after,),) = query(store_url, REGISTERED)
        return int(after - before)

    def check() -> None:
        (verdict,) = pipeline.verification().verify([table])
        if not verdict.is_equal:
            message = f"the lake differs from its source: {verdict}"
            raise WrongRowsError(message)

    return Arm(name=name, run=run, check=check)
