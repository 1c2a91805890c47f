"""A pipeline over the files of several acceptance cases: written chunk by chunk, consumed, applied and looked at."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from cdc_pipeline.consume.stream_to_slices import stream_to_slices_until_idle
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.record import TableName
from cdc_pipeline.settings.installation.endpoints import Endpoints
from cdc_pipeline.wiring import LakeFactory, Pipeline, open_pipeline
from tests.support.acceptance_cases import Row
from tests.support.case_runs import ordered_rows
from tests.support.delta_rows import seen
from tests.support.file_cases import MENDED, MISFIT, Chunk, WrittenCase, settings_of
from tests.support.streams import run_sql

Read = Callable[[Pipeline, TableName], list[dict[str, Any]]]
"""All rows of a table of the lake, hidden ones too."""
_MEND = f"UPDATE cdc.quarantine SET payload = replace(payload::text, '{MISFIT}', '{MENDED}')::json"
Differences = dict[str, Any]


@contextmanager
def opened(
    written: Sequence[WrittenCase],
    folder: Path,
    store_url: str,
    *,
    make_lake: LakeFactory | None = None,
    spark_url: str = "",
    **more: Any,
) -> Iterator[Pipeline]:
    """The metadata store is there already; several pipelines may share it."""
    endpoints = Endpoints(
        source_url="", metadata_store_url=store_url, airflow_database_url="", spark_url=spark_url, airflow_url=""
    )
    with open_pipeline(settings_of(written, folder, **more), endpoints, make_lake=make_lake) as pipeline:
        yield pipeline


def tell(pipeline: Pipeline, written: Sequence[WrittenCase], read: Read, *, anew: bool = False) -> Differences:
    """Chunk by chunk, the n-th of every case together; what came out otherwise than its case says, if anything.

    `anew`: each time by a consumer that was not there before.
    """
    differences: Differences = {}
    with ExitStack() as consumers:
        consumer = None
        for number in range(max(len(each.chunks) for each in written)):
            chunks = [(each, each.chunks[number]) for each in written if number < len(each.chunks)]
            for _, chunk in chunks:
                _write(pipeline, number, chunk)
            if consumer is None or anew:
                consumers.close()
                pipeline.source_setup().set_up()
                consumer = consumers.enter_context(pipeline.consumer_runs().open())
            stream_to_slices_until_idle(consumer)
            apply(pipeline, list(dict.fromkeys(name for each, _ in chunks for name in each.tables())))
            for each, chunk in chunks:
                differences |= _differences(pipeline, each, each.expected(chunk.passed), read, f"chunk {number + 1}")
    return differences


def replay_misfits(pipeline: Pipeline, written: Sequence[WrittenCase], read: Read) -> Differences:
    """Those of cases that say what comes out when they are mended."""
    mended = [each for each in written if each.case.mended is not None]
    if not mended:
        return {}
    names = {name for each in mended for name in each.tables()}
    run_sql(pipeline.endpoints.metadata_store_url, _MEND)
    ids = {pipeline.store.tables.table(name).table_id for name in names}
    entries = pipeline.store.quarantine.entries(state=QuarantineState.WAITING)
    outcomes = pipeline.replay().run([entry for entry in entries if entry.table_id in ids])
    assert [outcome.why for outcome in outcomes if outcome.why] == []
    assert len(outcomes) >= len(mended)
    apply(pipeline, sorted(names, key=str))
    differences: Differences = {}
    for each in mended:
        (name,) = each.tables()
        differences |= _differences(pipeline, each, {name: each.case.mended or []}, read, "mended")
    return differences


def apply(pipeline: Pipeline, tables: Sequence[TableName]) -> None:
    results = pipeline.slice_runs().apply(tables)
    assert [str(result.error) for result in results if result.error is not None] == []


def quarantined(pipeline: Pipeline, written: WrittenCase) -> int:
    ids = {pipeline.store.tables.table(name).table_id for name in written.tables()}
    return sum(entry.table_id in ids for entry in pipeline.store.quarantine.entries())


def ties(pipeline: Pipeline, written: WrittenCase) -> int:
    """As the claims of its tables counted them."""
    names = {str(name) for name in written.tables()}
    return sum(row["rows_tied"] or 0 for row in pipeline.store.inspection.run("claims") if row["source_table"] in names)


def _write(pipeline: Pipeline, number: int, chunk: Chunk) -> None:
    """Behind what is in the file, every second time into a new one."""
    for partition, line in chunk.lines:
        path = pipeline.settings.folder / "events" / str(partition) / f"{number // 2:04}.jsonl"
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _differences(
    pipeline: Pipeline, written: WrittenCase, expected: dict[TableName, list[Row]], read: Read, when: str
) -> Differences:
    rows = {table: seen(read(pipeline, table)) for table in expected}
    found = {table: ordered_rows([row for row in rows[table] if written.is_own(table, row)]) for table in expected}
    wanted = {table: ordered_rows(_typed(rows)) for table, rows in expected.items()}
    return {
        f"{table} after {when} of {[chunk.passed for chunk in written.chunks]}": (found[table], wanted[table])
        for table in expected
        if found[table] != wanted[table]
    }


def _typed(rows: list[Row]) -> list[Row]:
    """Moments are texts in a case."""
    return [{name: _moment(value) if name.endswith("_at") else value for name, value in row.items()} for row in rows]


def _moment(value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(value, str) else value
