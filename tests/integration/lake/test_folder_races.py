"""A lake in a folder: Spark and another process that commit one version at the same moment."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.fence import commit_info
from cdc_pipeline.lake.quoting import table_at
from cdc_pipeline.object_store.local import LocalObjectStore
from tests.support.lake import NOW

ROUNDS = 6
TIMEOUT_SECONDS = 60
RIVAL = "RIVAL"


def commit_when_spark_does(log: DeltaLog, folder: Path, version: int) -> bool:
    """As soon as anything of Spark's commit of this version shows. False: Spark has it."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not any(folder.glob(f"*{version:020d}.json*")):
        assert time.monotonic() < deadline
    info = commit_info(operation=RIVAL, user_metadata="", read_version=version - 1, now=NOW)
    try:
        log.append(version, [info])
    except LakeError:
        return False
    return True


def commits(log: DeltaLog) -> Iterator[str]:
    latest = log.latest_version()
    assert latest is not None
    for version in range(1, latest + 1):
        commit = log.read(version)
        assert commit is not None
        yield commit.info["operation"]


def test_of_spark_and_a_process_that_commit_at_one_moment_none_is_lost(
    session: SparkSession, store: LocalObjectStore, tmp_path: Path
) -> None:
    table = table_at(store.spark_url("race"))
    session.sql(f"CREATE TABLE {table} (id BIGINT) USING delta").collect()
    log, won = DeltaLog(store, "race"), 0
    for number in range(ROUNDS):
        latest = log.latest_version()
        assert latest is not None
        with ThreadPoolExecutor(max_workers=1) as beside:
            rival = beside.submit(commit_when_spark_does, log, tmp_path / "bucket/race/_delta_log", latest + 1)
            session.sql(f"INSERT INTO {table} VALUES ({number})").collect()
            won += rival.result()
    assert sorted(row.id for row in session.sql(f"SELECT id FROM {table}").collect()) == list(range(ROUNDS))
    assert list(commits(log)).count(RIVAL) == won
    assert not list((tmp_path / "bucket/race/_delta_log").glob("*.tmp"))
