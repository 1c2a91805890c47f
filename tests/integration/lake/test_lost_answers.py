"""A commit whose answer was lost is recognised, and what a killed client left running is cancelled, or harmless."""

import pickle
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.retries import DefaultPolicy
from structlog.testing import capture_logs

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.session import cancel, claim_tag, client_of, connect
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.steps import Moment, OnStep, no_step
from cdc_pipeline.wiring.adapters import open_lake
from tests.support.eventually import eventually
from tests.support.lake import NOW, Feed, event, lake_values, table_of
from tests.support.tcp_proxy import Proxy, proxied

ENDLESS = """
import sys, threading
from cdc_pipeline.lake.session import claim_tag, connect, session_name, tagged

session = connect(sys.argv[1])

def count():
    with tagged(session, claim_tag("dead")):
        session.range(0, 10**15, 1, 1).filter("xxhash64(id) = 0").collect()

threading.Thread(target=count, daemon=True).start()
while not session.client._get_operation_statuses().operation_statuses:
    pass
print(session_name(session), flush=True)
threading.Event().wait()
"""
MERGER = """
import pickle, sys
from datetime import UTC, datetime
from pathlib import Path
from cdc_pipeline.lake.session import connect
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore

def announce(name, moment):
    if (name, moment) == ("lake_table.merge", "before"):
        print("merging", flush=True)

store = LocalObjectStore(Path(sys.argv[2]))
lake = SparkLake(
    open_session=lambda: connect(sys.argv[1]), store=store, clock=lambda: datetime.now(UTC), on_step=announce,
    upsert="merge",
)
lake.upsert(*pickle.loads(Path(sys.argv[3]).read_bytes()))
"""


@contextmanager
def another_process(program: str, *words: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", program, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def through(proxy: Proxy, spark_url: str) -> SparkSession:
    """A session that soon gives up what does not answer."""
    session = connect(spark_url.replace(f":{urlsplit(spark_url).port}/", f":{proxy.port}/"))
    session.client.set_retry_policies([DefaultPolicy(max_retries=2, initial_backoff=10, max_backoff=20)])
    return session


@contextmanager
def opened_lake(
    store: LocalObjectStore, open_session: Callable[[], SparkSession], on_step: OnStep = no_step
) -> Iterator[SparkLake]:
    """Closed at the end: PySpark would ask what is left open, whatever became of its server, for later sessions too.

    Claims are MERGEd: only then does the commit's answer come from Spark.
    """
    with closing(
        SparkLake(open_session=open_session, store=store, clock=lambda: NOW, on_step=on_step, upsert="merge")
    ) as lake:
        yield lake


def log_of(store: LocalObjectStore, table: LakeTable) -> DeltaLog:
    return DeltaLog(store, lake_key(table.name))


def cut_when_committed(proxy: Proxy, store: LocalObjectStore, table: LakeTable) -> OnStep:
    """Nothing is heard of the first MERGE any more once its commit is in the log."""
    watching: list[Thread] = []

    def watch(before: int) -> None:
        while log_of(store, table).read(before + 1) is None:
            pass
        proxy.cut()

    def on_step(name: str, moment: Moment) -> None:
        if (name, moment) == ("lake_table.merge", Moment.BEFORE) and not watching:
            watching.append(Thread(target=watch, args=(log_of(store, table).latest_version(),), daemon=True))
            watching[0].start()

    return on_step


@pytest.mark.filterwarnings("ignore:.RETRIES_EXCEEDED")
def test_a_commit_whose_answer_was_lost_is_recognised_and_leaves_no_trace_in_the_next(
    spark_url: str, store: LocalObjectStore
) -> None:
    table = table_of()
    feed = Feed(store=store, table=table)
    with (
        proxied(urlsplit(spark_url).port or 0) as proxy,
        opened_lake(store, lambda: through(proxy, spark_url), cut_when_committed(proxy, store, table)) as lake,
    ):
        lake.create_table(table)
        outcome = lake.upsert(
            table, feed.claim([event("i", 1, 1, name="one", age=1), event("i", 2, 2, name="two", age=2)])
        )
        assert proxy.is_cut.is_set()
        assert (outcome.counts.inserted, outcome.already_applied) == (2, False)
        proxy.mend()
        assert lake.upsert(table, feed.claim([event("d", 3, 2)])).counts.deleted == 1
        lake.optimize(table)
    assert lake_values(store, table) == {(1,): ("one", 1)}


def test_what_a_killed_client_left_running_is_cancelled_and_its_session_ended(spark_url: str) -> None:
    with another_process(ENDLESS, spark_url) as dead:
        name = first_line(dead)
        dead.send_signal(signal.SIGKILL)
        dead.wait()
    client = client_of(spark_url, name)
    try:
        assert eventually(lambda: bool(client.interrupt_tag(claim_tag("dead"))))
        assert eventually(lambda: not client.interrupt_tag(claim_tag("dead")))
        assert cancel(spark_url, name, claim_tag("dead")) == ()
        with pytest.raises(PySparkException, match="SESSION_CLOSED"):
            client.interrupt_all()
    finally:
        client.close()


def test_a_worker_that_has_left_the_session_of_a_claim_works_on_when_another_one_cancels_the_claim(
    spark_url: str, store: LocalObjectStore
) -> None:
    first, second = (open_lake(spark_url, store, no_step) for _ in range(2))
    with closing(first), closing(second), capture_logs() as said:
        left = first.open()
        first.close()
        assert first.open() != left
        second.cancel(left, "a claim")
        assert first.session.range(1).count() == 1
    assert said == []


def test_a_merge_that_a_killed_client_left_running_is_harmless_also_when_nobody_cancels_it(
    spark_url: str, store: LocalObjectStore, tmp_path: Path
) -> None:
    table = table_of()
    feed = Feed(store=store, table=table)
    with opened_lake(store, lambda: connect(spark_url)) as lake:
        lake.create_table(table)
        lake.upsert(table, feed.claim([event("i", number, number, name="old", age=1) for number in range(1, 2000)]))
        work = feed.claim([event("u", 5000 + number, number, name="new", age=1) for number in range(1, 2000)])
        (tmp_path / "work").write_bytes(pickle.dumps((table, work)))
        with another_process(MERGER, spark_url, str(tmp_path / "bucket"), str(tmp_path / "work")) as dead:
            assert first_line(dead) == "merging"
            with suppress(subprocess.TimeoutExpired):
                dead.wait(0.3)
            dead.send_signal(signal.SIGKILL)

        def is_applied() -> bool:
            with suppress(LakeError):
                lake.upsert(table, work)
                return True
            return False

        assert eventually(is_applied)
        lake.upsert(table, feed.claim([event("d", 9000, 1)]))
    log = log_of(store, table)
    applied = Counter(commit.user_metadata.get("last") for commit in log.backwards(log.latest_version() or 0))
    assert [applied[number] for number in (1, 2, 3)] == [1, 1, 1]
    assert set(lake_values(store, table).values()) == {("new", 1)}
