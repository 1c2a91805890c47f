"""The process that holds a snapshot answers its readers, whoever else connects, and says when the snapshot is lost."""

import errno
import json
import os
import resource
import secrets
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Never

import pymysql
import pytest

from cdc_pipeline.errors import SettingsError, SnapshotError, SourceAway, SourceError
from cdc_pipeline.settings.installation.ports import free_port
from cdc_pipeline.sources.mysql.held_snapshot import ACCEPT_PAUSE, SnapshotServer, hold_snapshot, query_snapshot
from cdc_pipeline.sources.mysql.session import MysqlAddress
from cdc_pipeline.steps import no_step
from tests.support.eventually import eventually


class FailingListener(Listener):
    """Counts how often a connection was asked for, and has none."""

    accepts = 0

    def accept(self) -> Never:
        self.accepts += 1
        raise OSError(errno.EMFILE, "too many open files")


NOWHERE = MysqlAddress(host="127.0.0.1", port=9, user="nobody", password="")


@contextmanager
def served(key_seconds: float = 10) -> Iterator[str]:
    """Where a snapshot is served whose connection to the source is lost."""
    key = secrets.token_bytes(32)
    with Listener(("127.0.0.1", 0), backlog=64) as listener:
        host, port = listener.address
        lost = pymysql.connect(defer_connect=True)
        with SnapshotServer(lost, NOWHERE, listener, key, key_seconds).running():
            yield json.dumps({"host": host, "port": port, "key": key.hex()})


def asked(exported: str, query: str) -> int:
    return sum(block.num_rows for block in query_snapshot(exported, query))


def patience_of_readers(port: int) -> list[tuple[bool, int]]:
    """Of each connection of this process to the port: whether it is probed while idle, its milliseconds of silence."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if entry.readlink().name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as same:
                    if same.family == socket.AF_INET and same.getpeername()[1] == port:
                        is_probed = bool(same.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
                        milliseconds = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                        found.append((is_probed, milliseconds))
    return found


def test_a_reader_notices_that_the_machine_of_the_holder_is_gone_also_before_the_holder_said_anything() -> None:
    with ThreadPoolExecutor(1) as pool:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            host, port = silent.getsockname()
            reading = pool.submit(asked, json.dumps({"host": host, "port": port, "key": "00"}), "SELECT 1")
            assert eventually(lambda: patience_of_readers(port) == [(True, 25_000)])
        assert isinstance(reading.exception(20), SnapshotError)


def test_a_client_that_says_nothing_keeps_no_reader_and_no_end_of_the_snapshot_waiting() -> None:
    with served() as exported:
        place = json.loads(exported)
        silent = socket.create_connection((place["host"], place["port"]))
        with pytest.raises(SourceError, match="expected a SELECT"):
            asked(exported, "DELETE FROM orders")
    silent.close()


def test_a_client_that_says_nothing_is_disconnected() -> None:
    with served(key_seconds=0.1) as exported:
        place = json.loads(exported)
        with socket.create_connection((place["host"], place["port"]), timeout=20) as silent:
            while silent.recv(1024):
                pass


def test_a_failure_to_accept_a_reader_is_followed_by_a_pause() -> None:
    """Such as that of too many open files, which goes on until others close theirs."""
    began = time.monotonic()
    with FailingListener(("127.0.0.1", 0)) as listener:
        lost = pymysql.connect(defer_connect=True)
        with SnapshotServer(lost, NOWHERE, listener, b"key").running():
            assert eventually(lambda: listener.accepts >= 3)
    assert time.monotonic() - began >= 2 * ACCEPT_PAUSE


def test_an_address_of_another_machine_is_refused_before_the_source_is_asked() -> None:
    """As where pipeline.yml names the address of one of several machines."""
    with (
        pytest.raises(SettingsError, match=r"source.copy_address.*CDC_SOURCE__COPY_ADDRESS"),
        hold_snapshot(NOWHERE, [], lock="", listen_on="192.0.2.1", on_step=no_step),
    ):
        pass


def test_a_machine_without_a_free_file_is_tried_again() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with (
            pytest.raises(SourceAway, match="Too many open files"),
            hold_snapshot(NOWHERE, [], lock="", listen_on="127.0.0.1", on_step=no_step),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_reader_on_another_machine_is_told_which_address_is_missing() -> None:
    with served() as exported, pytest.raises(SnapshotError, match="CDC_SOURCE__COPY_ADDRESS"):
        asked(json.dumps({**json.loads(exported), "port": free_port()}), "SELECT 1")


def test_a_reader_without_the_key_gets_nothing() -> None:
    with served() as exported, pytest.raises(SnapshotError, match="the held snapshot of the source is gone"):
        asked(exported.replace('"key": "', '"key": "00'), "DELETE FROM orders")


def test_a_reader_of_a_snapshot_whose_connection_is_lost_is_told_that_the_snapshot_is_gone() -> None:
    with served() as exported, pytest.raises(SnapshotError, match="the held snapshot of the source is gone"):
        asked(exported, "SELECT 1")
