"""Ports that another process replaces while this one waits for its lock."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
from sqlalchemy import make_url

from cdc_pipeline.launcher.control import down, start_and_wait, up
from cdc_pipeline.launcher.parts import running
from cdc_pipeline.launcher.processes import Process
from cdc_pipeline.settings.installation.endpoints import Endpoints
from cdc_pipeline.settings.installation.state import exclusive, open_installation, with_free_ports
from tests.support.eventually import eventually
from tests.support.shop_settings import shop_settings


@contextmanager
def taken(port: int) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", port)):
        yield


def after_a_wait(lock: Path, call: Callable[[], Endpoints]) -> tuple[Endpoints, int]:
    """Calls it while another holds the lock and replaces a taken port. Returns the answer, and the other's port."""
    home = lock.parent
    stored = open_installation(home)

    def is_awaited() -> bool:
        return [file.path for file in psutil.Process().open_files()].count(str(lock)) == 2

    with ThreadPoolExecutor() as threads, taken(stored.ports["postgres"]):
        with exclusive(lock):
            answer = threads.submit(call)
            assert eventually(is_awaited)
            others = with_free_ports(open_installation(home), ["postgres"])
        return answer.result(), others.ports["postgres"]


def test_a_command_that_waited_for_another_one_uses_the_port_that_that_one_stored(tmp_path: Path, home: Path) -> None:
    def use() -> Endpoints:
        settings, config = shop_settings(tmp_path), tmp_path / "pipeline.yml"
        with running(settings, config=config, home=home, parts=frozenset({"postgres"})) as endpoints:
            return endpoints

    open_installation(home)
    endpoints, port = after_a_wait(home / "parts.lock", use)
    assert make_url(endpoints.source_url).port == port
    assert open_installation(home).ports["postgres"] == port


def test_an_up_that_waited_for_another_one_returns_the_port_that_that_one_stored(tmp_path: Path, home: Path) -> None:
    def wait() -> Endpoints:
        settings, config = shop_settings(tmp_path), tmp_path / "pipeline.yml"
        return up(settings, config=config, home=home, on_states=lambda _: None)

    once = Process(name="once", waits_for="", command=("true",), environment={}, one_shot=True)
    try:
        start_and_wait(open_installation(home), (once,), lambda _: None)
        endpoints, port = after_a_wait(home / "up.lock", wait)
        assert make_url(endpoints.source_url).port == port
    finally:
        down(home)
