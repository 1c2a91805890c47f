"""`cdc consume` outlives whatever happens to its servers and says it at once; all that wait end in time when asked."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
import pytest

from cdc_pipeline.launcher.postgres import PostgresServer, create_database, running_server
from tests.support.command_line import CommandLine, query
from tests.support.eventually import eventually
from tests.support.postgres import stopped_server
from tests.support.streams import run_sql
from tests.support.tcp_proxy import proxied

IN_TIME_SECONDS = 5
TERMINATED = 128 + signal.SIGTERM
WAITS_FOR_A_LOCK = """
SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()
"""
ACTIVE = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND active"
READERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A consumer whose words lie in a file."""

    process: "subprocess.Popen[str]"
    log: Path
    cdc: CommandLine

    def says(self, words: str, times: int = 1) -> bool:
        return eventually(lambda: self.log.read_text(encoding="utf-8").count(words) >= times)

    def reads(self) -> bool:
        return eventually(lambda: query(self.cdc.source_url, ACTIVE) == [(1,)])

    def registers(self, rows: int) -> bool:
        return eventually(lambda: query(self.cdc.store_url, "SELECT sum(rows) FROM cdc.slice") == [(rows,)])

    def seconds_to_end(self, number: signal.Signals = signal.SIGTERM) -> float:
        begun = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(60)
        return time.monotonic() - begun


@contextmanager
def consuming(cdc: CommandLine, *words: str) -> Iterator[Running]:
    """`cdc consume`, or what else runs with these words."""
    log = cdc.folder / "consumer.log"
    with log.open("wb") as output:
        process = cdc.start(*(words or ("consume",)), log=output)
    try:
        yield Running(process=process, log=log, cdc=cdc)
    finally:
        process.kill()
        process.wait()
    said = log.read_text(encoding="utf-8")
    assert "Traceback" not in said
    cdc.check_shows_no_password(said)


def source_at(cdc: CommandLine, port: int, **changes: str) -> dict[str, str]:
    """The source of `cdc`, reached at another port."""
    parts = urlsplit(cdc.source_url)
    user = changes.pop("user", f"{parts.username}:{parts.password}")
    url = f"postgresql://{user}@127.0.0.1:{port}{changes.pop('path', parts.path)}"
    return {"kind": "postgres", "url": url, "publication": cdc.name, "slot": cdc.name}


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with stopped_server(dict(os.environ)) as server:
        yield server


def test_a_consumer_lets_its_source_shut_down_and_reads_on_when_it_is_back(
    own_server: PostgresServer, store_url: str, tmp_path: Path
) -> None:
    cdc = CommandLine(folder=tmp_path, source_url=own_server.url("shop"), store_url=store_url)
    cdc.write_settings(slice_length="1s")
    with ExitStack() as stopping:
        with running_server(own_server):
            create_database(own_server.url("postgres"), "shop")
            run_sql(cdc.source_url, "CREATE TABLE orders (id int PRIMARY KEY)")
            with consuming(cdc, "setup-source") as setting_up:
                assert setting_up.process.wait(60) == 0
            consumer = stopping.enter_context(consuming(cdc))
            assert consumer.reads()
            run_sql(cdc.source_url, "INSERT INTO orders VALUES (1)")
            assert consumer.registers(1)
            begun = time.monotonic()
        assert time.monotonic() - begun < IN_TIME_SECONDS
        assert consumer.says("the stream stands still", times=2)
        with running_server(own_server):
            run_sql(cdc.source_url, "INSERT INTO orders VALUES (2)")
            assert consumer.registers(2)
            assert consumer.seconds_to_end() < IN_TIME_SECONDS
            assert consumer.process.returncode == 0


def test_a_consumer_reads_on_after_its_sessions_were_ended_and_its_network_was_cut(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    with proxied(urlsplit(cdc.source_url).port or 0) as proxy:
        cdc.write_settings(slice_length="1s", source=source_at(cdc, proxy.port))
        with consuming(cdc) as consumer:
            assert consumer.reads()
            run_sql(cdc.source_url, READERS, "INSERT INTO orders VALUES (1)")
            assert consumer.registers(1)
            proxy.cut()
            assert consumer.says("the stream stands still", times=3)
            alarm = "SELECT alarm FROM cdc.stream_partition"
            assert "SourceAway: the source does not answer" in query(cdc.store_url, alarm)[0][0]
            proxy.mend()
            run_sql(cdc.source_url, "INSERT INTO orders VALUES (2)")
            assert consumer.registers(2)
            assert query(cdc.store_url, alarm) == [(None,)]
            run_sql(cdc.store_url, READERS)
            run_sql(cdc.source_url, "INSERT INTO orders VALUES (3)")
            assert consumer.registers(3)
            assert consumer.seconds_to_end(signal.SIGINT) < IN_TIME_SECONDS


def test_a_consumer_with_a_wrong_url_says_so_at_once_and_again_and_ends_in_time(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    port = urlsplit(cdc.source_url).port or 0
    wrong = {
        "no_such_user:x": "correct user and password in source.url",
        "cdc:wrong": "correct user and password in source.url",
    }
    for user, remedy in wrong.items():
        cdc.write_settings(source=source_at(cdc, port, user=user))
        with consuming(cdc) as consumer:
            assert consumer.says("the stream stands still", times=2)
            assert remedy in consumer.log.read_text(encoding="utf-8")
            assert consumer.seconds_to_end() < IN_TIME_SECONDS


def test_a_consumer_without_its_metadata_store_waits_for_it(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    cdc.write_settings(metadata_store="postgresql://cdc@nowhere.invalid/store")
    with consuming(cdc) as consumer:
        assert consumer.says("the metadata store did not answer")
        assert consumer.seconds_to_end() < IN_TIME_SECONDS


def test_a_resident_worker_without_its_metadata_store_says_that_it_takes_no_request(cdc: CommandLine) -> None:
    cdc.write_settings(metadata_store="postgresql://cdc@nowhere.invalid/store")
    with consuming(cdc, "work") as worker:
        assert worker.says("no request is taken")
        assert "stream" not in worker.log.read_text(encoding="utf-8")
        assert worker.seconds_to_end() < IN_TIME_SECONDS


def test_a_consumer_ends_in_time_while_it_waits_for_a_lock_of_the_metadata_store(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    with closing(psycopg2.connect(cdc.store_url)) as other, other.cursor() as cursor:
        cursor.execute("LOCK cdc.stream_partition")
        with consuming(cdc) as consumer:
            assert eventually(lambda: query(cdc.store_url, WAITS_FOR_A_LOCK) == [(1,)])
            assert consumer.seconds_to_end() < IN_TIME_SECONDS


@pytest.mark.parametrize(
    ("words", "locked"),
    [
        (("apply",), "cdc.source_table"),
        (("snapshot",), "orders"),
        (("repair", "{}.public.orders"), "cdc.source_table"),
    ],
    ids=lambda found: found[0] if isinstance(found, tuple) else "",
)
def test_a_command_that_waits_for_a_lock_ends_in_time(cdc: CommandLine, words: tuple[str, ...], locked: str) -> None:
    assert cdc.run("setup-source").exit_code == 0
    url = cdc.store_url if locked.startswith("cdc.") else cdc.source_url
    with closing(psycopg2.connect(url)) as other, other.cursor() as cursor:
        cursor.execute(f"LOCK {locked}")
        with consuming(cdc, *(word.format(cdc.name) for word in words)) as command:
            assert eventually(lambda: query(url, WAITS_FOR_A_LOCK) == [(1,)])
            assert command.seconds_to_end() < IN_TIME_SECONDS
            assert command.process.returncode == TERMINATED


def test_a_snapshot_ends_in_time_while_spark_accepts_and_never_answers(cdc: CommandLine) -> None:
    run_sql(cdc.source_url, 'ALTER TABLE orders ADD COLUMN "only Spark makes lake tables of such names" text')
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cdc.write_settings(spark=f"sc://127.0.0.1:{silent.getsockname()[1]}")
        with consuming(cdc, "snapshot") as command:
            answers_nothing, _ = silent.accept()
            with answers_nothing:
                assert command.seconds_to_end() < IN_TIME_SECONDS
                assert command.process.returncode == TERMINATED


def test_a_consumer_ends_in_time_while_a_server_accepts_and_never_answers(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cdc.write_settings(source=source_at(cdc, silent.getsockname()[1]))
        with consuming(cdc) as consumer:
            answers_nothing, _ = silent.accept()
            with answers_nothing:
                assert consumer.seconds_to_end() < IN_TIME_SECONDS


def test_a_second_consumer_takes_over_and_the_first_says_why_it_ends(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    cdc.write_settings(slice_length="1s")
    with consuming(cdc) as first:
        assert first.reads()
        second = cdc.start("consume")
        try:
            assert eventually(lambda: first.process.poll() is not None)
            assert "belongs to " in first.log.read_text(encoding="utf-8")
            run_sql(cdc.source_url, "INSERT INTO orders VALUES (1)")
            assert first.registers(1)
        finally:
            second.kill()
            second.communicate()
