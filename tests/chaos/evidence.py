"""What must hold after the fire: nothing lost, nothing doubled, and every published boundary in balance."""

import time
from collections import Counter
from contextlib import closing, suppress
from itertools import pairwise
from threading import Event
from typing import Any

import psycopg2
from deltalake import DeltaTable, QueryBuilder

from cdc_pipeline.areas import lake_key
from cdc_pipeline.record import DELETED, TableName, encode_position
from cdc_pipeline.wiring import Pipeline
from tests.chaos.bank import TABLES, Bank
from tests.support.command_line import query
from tests.support.delta_rows import delta_url, seen, storage_options
from tests.support.pipelines import stored_rows
from tests.support.version_vector import version_vector

TIMEOUT_SECONDS = 900
SUMS = {
    "pgbench_accounts": "abalance",
    "pgbench_tellers": "tbalance",
    "pgbench_branches": "bbalance",
    "pgbench_history": "delta",
}
CURRENT = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
HOW_FAR = """
SELECT max(position), (SELECT count(*) FROM cdc.slice WHERE rows > 0 AND state = 'registered') FROM cdc.boundary
"""
SLICES = """
SELECT number, stream_partition, start_offset, end_offset, rows, slice.state
FROM cdc.slice JOIN cdc.source_table USING (table_id)
WHERE table_name = '{table}' ORDER BY number
"""
LABELS = "SELECT label_start, label_end FROM cdc.boundary ORDER BY position"
CLAIMS = """
SELECT epoch, started_at FROM cdc.claim JOIN cdc.source_table USING (table_id)
WHERE table_name = '{table}' AND claim.state = 'applied' ORDER BY first_number
"""


def wait_until_applied(bank: Bank) -> None:
    """Until everything up to the source's end is registered and applied; nobody writes any more.

    Whoever was hit last may still be away, and is asked again.
    """
    deadline, end = time.monotonic() + TIMEOUT_SECONDS, ""
    while True:
        with suppress(psycopg2.OperationalError):
            end = end or encode_position(int(query(bank.source_url, CURRENT)[0][0]))
            ((registered, waits),) = query(bank.store_url, HOW_FAR)
            if registered >= end and not waits:
                return
        assert time.monotonic() < deadline, _logs(bank)
        Event().wait(0.5)


def _logs(bank: Bank) -> str:
    logs = sorted((bank.installation.home / "logs").glob("*.log"))
    return "\n".join(f"--- {log.stem}\n{bank.log(log.stem)[-3000:]}" for log in logs)


def check_rows(bank: Bank, pipeline: Pipeline) -> dict[str, int]:
    """Each table row by row, each row as often as it is there; how many rows each has."""
    counts = {}
    for name in pipeline.table_names():
        source, lake = source_rows(bank.source_url, name), lake_rows(pipeline, name)
        assert source == lake, (name, list((source - lake).items())[:5], list((lake - source).items())[:5])
        counts[name.table] = source.total()
    return counts


def source_rows(url: str, name: TableName) -> Counter[tuple[Any, ...]]:
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(f'SELECT * FROM "{name.schema}"."{name.table}"')
        names = [column.name for column in cursor.description or ()]
        order = sorted(range(len(names)), key=names.__getitem__)
        return Counter(tuple(row[place] for place in order) for row in cursor.fetchall())


def lake_rows(pipeline: Pipeline, name: TableName) -> Counter[tuple[Any, ...]]:
    """What a reader sees, read without Spark, which wrote it."""
    return Counter(tuple(row[column] for column in sorted(row)) for row in seen(stored_rows(pipeline, name)))


def opened(pipeline: Pipeline, name: TableName, version: int | None = None) -> DeltaTable:
    options = storage_options(pipeline.settings.object_store)
    return DeltaTable(delta_url(pipeline.objects, lake_key(name)), version=version, storage_options=options)


def check_store(bank: Bank) -> None:
    """Numbers have no gap, ranges do not overlap, and everything with rows is marked as applied.

    Labels never step back, and whoever had applied slices under an older lease was done before the next one began.
    """
    labels = query(bank.store_url, LABELS)
    assert labels == sorted(labels)
    for table in TABLES:
        slices = query(bank.store_url, SLICES.format(table=table))
        assert [row[0] for row in slices] == list(range(1, len(slices) + 1))
        for partition in (0, 1):
            ranges = [(start, end) for _, found, start, end, _, _ in slices if found == partition]
            assert all(earlier[1] <= later[0] for earlier, later in pairwise(ranges))
        assert [row for row in slices if row[4] and row[5] != "applied"] == []
        claims = query(bank.store_url, CLAIMS.format(table=table))
        assert [epoch for epoch, _ in claims] == sorted(epoch for epoch, _ in claims)
        assert [moment for _, moment in claims] == sorted(moment for _, moment in claims)


def check_boundaries(pipeline: Pipeline) -> int:
    """The four sums agree at every boundary that all four tables show; how many different states those are."""
    ids = {pipeline.store.tables.table(name).table_id: name for name in pipeline.table_names()}
    last = pipeline.store.lake_positions.last_boundary(pipeline.settings.name)
    assert last is not None
    vectors: set[tuple[tuple[int, int], ...]] = set()
    for boundary_id in range(1, last.boundary_id + 1):
        vector = version_vector(pipeline.store, boundary_id)
        whole = [(table_id, version) for table_id in ids if (version := vector.get(table_id)) is not None]
        if len(whole) == len(ids):
            vectors.add(tuple(whole))
    known: dict[tuple[int, int], int] = {}
    for vector_ in sorted(vectors):
        for table_id, version in vector_:
            if (table_id, version) not in known:
                known[table_id, version] = _sum(pipeline, ids[table_id], version)
        sums = {ids[table_id].table: known[table_id, version] for table_id, version in vector_}
        assert len(set(sums.values())) == 1, (vector_, sums)
    return len(vectors)


def _sum(pipeline: Pipeline, name: TableName, version: int) -> int:
    table = opened(pipeline, name, version)
    hidden = f"WHERE {DELETED} IS NOT TRUE" if DELETED in {field.name for field in table.schema().fields} else ""
    statement = f"SELECT coalesce(sum({SUMS[name.table]}), 0) AS total FROM found {hidden}"
    found = QueryBuilder().register("found", table).execute(statement).read_all()
    return int(found["total"][0].as_py())
