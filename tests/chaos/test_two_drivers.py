"""Two Spark drivers that write one table on S3 as fast as they can, while answers to their commits are cut off."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from threading import Lock

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc_pipeline.lake.session import connect
from tests.chaos.report import Report
from tests.support.faulty_server import ACTED_AND_CUT, Fault, Request, Rule, faulty
from tests.support.s3 import s3_objects, started_moto
from tests.support.s3proxy import started_s3proxy
from tests.support.spark import started_spark

pytestmark = pytest.mark.chaos

IDEMPOTENCY = "spark.databricks.delta.commit.idempotencyCheck.enabled"
APPENDS, MERGES, EVERY_CUT = 10, 5, 3
SECTION = "Two Spark drivers on one S3 table"


@contextmanager
def started_server(kind: str, folder: Path) -> Iterator[str]:
    with started_moto() if kind == "moto" else started_s3proxy(folder) as endpoint:
        yield endpoint


@pytest.fixture(scope="module", params=["moto", "s3proxy"])
def drivers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, list[SparkSession]]]:
    """Every third commit of each driver gets no answer. Delta's own check for that is off: ours must do."""
    with ExitStack() as started:
        endpoint = started.enter_context(started_server(request.param, tmp_path_factory.mktemp("s3")))
        proxy = started.enter_context(faulty(endpoint))
        proxy.rule = every_third_commit_is_cut()
        sessions = []
        for name in ("one", "other"):
            url = started.enter_context(started_spark(tmp_path_factory.mktemp(name), proxy.endpoint))
            sessions.append(connect(url))
            started.callback(sessions[-1].stop)
            sessions[-1].conf.set(IDEMPOTENCY, "false")
        yield request.param, sessions


def every_third_commit_is_cut() -> Rule:
    numbers, lock, cut = count(1), Lock(), set[str]()

    def rule(request: Request) -> Fault | None:
        if not request.is_delta_commit:
            return None
        with lock:
            if next(numbers) % EVERY_CUT or request.path in cut:
                return None
            cut.add(request.path)
        return ACTED_AND_CUT

    return rule


def at_once(sessions: list[SparkSession], statements: list[list[str]]) -> list[list[bool]]:
    """Each session runs its statements; which of them it was told to have succeeded."""

    def run(session: SparkSession, own: list[str]) -> list[bool]:
        return [succeeds(session, statement) for statement in own]

    with ThreadPoolExecutor(len(sessions)) as threads:
        return list(threads.map(run, sessions, statements))


def succeeds(session: SparkSession, statement: str) -> bool:
    """Or Delta refuses it, for another commit changed what it had read."""
    try:
        session.sql(statement).collect()
    except PySparkException as error:
        if "CONCURRENT" not in str(error).upper():
            raise
        return False
    return True


@pytest.mark.parametrize("scheme", ["s3a", "s3"])
def test_appends_of_two_drivers(drivers: tuple[str, list[SparkSession]], report: Report, scheme: str) -> None:
    kind, sessions = drivers
    table = f"delta.`{s3_objects('http://127.0.0.1:1', f'appends-{scheme}-{kind}').spark_url('t')}`".replace(
        "s3a:", f"{scheme}:"
    )
    sessions[0].sql(f"CREATE TABLE {table} (id BIGINT) USING delta").collect()
    began = time.monotonic()
    ids = [[driver * 1000 + number for number in range(APPENDS)] for driver in range(len(sessions))]
    told = at_once(sessions, [[f"INSERT INTO {table} VALUES ({id_})" for id_ in own] for own in ids])
    took = timedelta(seconds=time.monotonic() - began)
    assert all(map(all, told))
    found = sorted(row.id for row in sessions[1].sql(f"SELECT id FROM {table}").collect())
    every = sorted(id_ for own in ids for id_ in own)
    words = f"{len(set(found))} of {len(every)} rows there, {len(found) - len(set(found))} twice, in {took.seconds} s"
    if scheme == "s3a":
        report.record(f"{SECTION}: appends on {kind}", "our log store", words)
        assert found == every
    else:
        report.record(f"{SECTION}: appends on {kind}", "Delta's own log store", words)
        assert set(found) <= set(every)


def test_merges_of_one_row_by_two_drivers(drivers: tuple[str, list[SparkSession]], report: Report) -> None:
    kind, sessions = drivers
    table = f"delta.`{s3_objects('http://127.0.0.1:1', f'merges-{kind}').spark_url('t')}`"
    sessions[0].sql(f"CREATE TABLE {table} (id BIGINT, n BIGINT) USING delta").collect()
    sessions[0].sql(f"INSERT INTO {table} VALUES (1, 0)").collect()
    merge = f"MERGE INTO {table} t USING (SELECT 1L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = t.n + 1"
    told = at_once(sessions, [[merge] * MERGES for _ in sessions])
    ((n,),) = sessions[1].sql(f"SELECT n FROM {table}").collect()
    merged = sum(map(sum, told))
    words = f"{merged} merges told to have succeeded, {n} counted, {2 * MERGES - merged} refused as concurrent"
    report.record(f"{SECTION}: merges on {kind}", "our log store", words)
    assert n == merged
