"""Each thread has a Spark session of its own, and none of them grows too old."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any

from cdc_pipeline.lake.spark_lake import LONGEST_IDLE, SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.steps import no_step
from cdc_pipeline.wiring.opening import LakePerThread


class Session:
    """Of Spark, as far as a lake opens and ends it."""

    def __init__(self, opened: "list[Session]") -> None:
        self.is_open = True
        self.is_closed = False
        self.client = self
        opened.append(self)

    def set_retry_policies(self, policies: list[object]) -> None:
        pass

    def stop(self) -> None:
        self.is_open = False


def lakes(folder: Path, opened: list[Session], now: list[float]) -> LakePerThread:
    def open_session() -> Any:
        return Session(opened)

    def open_lake() -> SparkLake:
        store = LocalObjectStore(folder)
        return SparkLake(
            open_session=open_session,
            store=store,
            clock=lambda: datetime.now(UTC),
            on_step=no_step,
            seconds=lambda: now[0],
        )

    return LakePerThread(open_lake)


def test_two_threads_have_two_sessions_and_both_end_with_the_pipeline(tmp_path: Path) -> None:
    opened, both = list[Session](), Barrier(2)
    lake_of_thread = lakes(tmp_path, opened, [0.0])

    def work() -> bool:
        both.wait(30)
        return lake_of_thread().session is lake_of_thread().session

    with ThreadPoolExecutor(2) as threads:
        assert [run.result() for run in (threads.submit(work), threads.submit(work))] == [True, True]
    assert [session.is_open for session in opened] == [True, True]
    lake_of_thread.close()
    assert [session.is_open for session in opened] == [False, False]


def test_a_session_that_was_idle_for_long_is_replaced_before_the_server_ends_it(tmp_path: Path) -> None:
    opened, now = list[Session](), [0.0]
    lake_of_thread = lakes(tmp_path, opened, now)
    first = lake_of_thread().session
    now[0] += LONGEST_IDLE.total_seconds()
    assert lake_of_thread().session is first
    now[0] += LONGEST_IDLE.total_seconds() + 1
    assert lake_of_thread().session is not first
    assert [session.is_open for session in opened] == [False, True]


def test_looking_for_work_does_not_keep_an_idle_session(tmp_path: Path) -> None:
    """A worker with nothing to merge reads the fences of its tables, which needs no Spark."""
    opened, now = list[Session](), [0.0]
    lake_of_thread = lakes(tmp_path, opened, now)
    lake = lake_of_thread()
    first = lake.session
    for _ in range(30):
        now[0] += LONGEST_IDLE.total_seconds() / 2
        with lake_of_thread()._calls("writing a few rows without Spark"):
            pass
    assert lake.session is not first
    assert [session.is_open for session in opened] == [False, True]


def test_a_session_is_kept_for_as_long_as_a_call_takes(tmp_path: Path) -> None:
    opened, now = list[Session](), [0.0]
    lake = lakes(tmp_path, opened, now)()
    first = lake.session

    def long_compaction(*_: object) -> None:
        now[0] += 10 * LONGEST_IDLE.total_seconds()

    with lake._calls("compacting"):
        long_compaction()
        assert lake.session is first
    assert lake.session is first
