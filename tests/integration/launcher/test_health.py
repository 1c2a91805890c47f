"""What each kind of question finds out about a process, also about one that is stopped."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc_pipeline.launcher.health import Health, forget, health_of, heartbeat_url
from cdc_pipeline.launcher.heartbeat import HEARTBEAT_VARIABLE, Heartbeat
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.settings.installation.ports import free_port
from tests.support.eventually import await_listener

PAGE = "monitor.json"
HOUR = 3600
SECONDS = 240


@contextmanager
def web_server(folder: Path, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(folder), str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        await_listener(process, port, 20)
        yield process
        process.kill()


def page(**parts: str) -> str:
    return json.dumps({name: {"status": status} for name, status in parts.items()})


def test_a_server_that_is_stopped_is_silent_though_it_still_accepts_connections(tmp_path: Path) -> None:
    port = free_port()
    with web_server(tmp_path, port) as server:
        assert health_of(f"http://127.0.0.1:{port}/") is Health.HEALTHY
        server.send_signal(signal.SIGSTOP)
        assert health_of(f"http://127.0.0.1:{port}/") is Health.SILENT
        assert health_of(f"http2://127.0.0.1:{port}") is Health.SILENT
    assert health_of(f"http2://127.0.0.1:{port}") is Health.SILENT


def test_a_part_is_judged_by_what_the_page_says_of_it_and_not_by_a_page_that_is_away(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/{PAGE}#scheduler"
    with web_server(tmp_path, port) as server:
        for text, expected in (
            (page(metadatabase="healthy", scheduler="healthy"), Health.HEALTHY),
            (page(metadatabase="healthy", scheduler="unhealthy"), Health.SILENT),
            (page(metadatabase="unhealthy", scheduler="unhealthy"), Health.UNKNOWN),
            ("no page of Airflow's", Health.UNKNOWN),
            ("[]", Health.UNKNOWN),
        ):
            (tmp_path / PAGE).write_text(text, encoding="utf-8")
            assert health_of(url) is expected
        (tmp_path / PAGE).unlink()
        assert health_of(url) is Health.UNKNOWN
        server.send_signal(signal.SIGSTOP)
        assert health_of(url) is Health.UNKNOWN
    assert health_of(url) is Health.UNKNOWN


def test_a_postgresql_that_refuses_lives_and_one_that_is_not_there_is_silent(postgres: PostgresServer) -> None:
    url = postgres.url("postgres")
    assert health_of(url) is Health.HEALTHY
    assert health_of(url.replace(postgres.password, "guessed")) is Health.UNKNOWN
    assert health_of(url.replace(str(postgres.port), str(free_port()))) is Health.SILENT


def test_the_spark_server_answers_whoever_asks_without_its_token(spark_url: str) -> None:
    address = spark_url.removeprefix("sc://").partition("/")[0]
    assert health_of(f"http2://{address}") is Health.HEALTHY


@pytest.fixture(params=["home", "#1 in C#", "what?", "100%41", "naïve home"])
def beat(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    home = tmp_path / str(request.param)
    home.mkdir()
    return home / "consumer.heartbeat"


def test_a_heartbeat_is_good_for_so_many_seconds(beat: Path) -> None:
    url = heartbeat_url(str(beat), seconds=SECONDS)
    assert health_of(url) is Health.SILENT
    Heartbeat({HEARTBEAT_VARIABLE: str(beat)}).beat()
    assert health_of(url) is Health.HEALTHY
    moment = beat.stat().st_mtime - HOUR
    os.utime(beat, (moment, moment))
    assert health_of(url) is Health.SILENT


def test_the_heartbeat_of_an_earlier_process_says_nothing_of_the_next(beat: Path) -> None:
    Heartbeat({HEARTBEAT_VARIABLE: str(beat)}).beat()
    forget(heartbeat_url(str(beat), seconds=SECONDS))
    assert not beat.exists()


def test_a_heartbeat_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    Heartbeat({HEARTBEAT_VARIABLE: str(tmp_path / "gone" / "heartbeat")}).beat()
    Heartbeat({}).beat()
