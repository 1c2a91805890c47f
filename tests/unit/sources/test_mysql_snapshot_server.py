"""The process that holds a snapshot answers its readers, whoever else connects, and says when the snapshot is lost."""

import json
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Listener

import pymysql
import pytest

from cdc_pipeline.errors import SnapshotError, SourceError
from cdc_pipeline.sources.mysql.held_snapshot import SnapshotServer, query_snapshot
from cdc_pipeline.sources.mysql.session import MysqlAddress

NOWHERE = MysqlAddress(host="127.0.0.1", port=9, user="nobody", password="")


@contextmanager
def served() -> Iterator[str]:
    """Where a snapshot is served whose connection to the source is lost."""
    key = secrets.token_bytes(32)
    with Listener(("127.0.0.1", 0), backlog=64) as listener:
        host, port = listener.address
        lost = pymysql.connect(defer_connect=True)
        with SnapshotServer(lost, NOWHERE, listener, key).running():
            yield json.dumps({"host": host, "port": port, "key": key.hex()})


def asked(exported: str, query: str) -> int:
    return sum(block.num_rows for block in query_snapshot(exported, query))


def test_a_client_that_says_nothing_keeps_no_reader_and_no_end_of_the_snapshot_waiting() -> None:
    with served() as exported:
        place = json.loads(exported)
        silent = socket.create_connection((place["host"], place["port"]))
        with pytest.raises(SourceError, match="expected a SELECT"):
            asked(exported, "DELETE FROM orders")
    silent.close()


def test_a_reader_without_the_key_gets_nothing() -> None:
    with served() as exported, pytest.raises(SnapshotError, match="the held snapshot of the source is gone"):
        asked(exported.replace('"key": "', '"key": "00'), "DELETE FROM orders")


def test_a_reader_of_a_snapshot_whose_connection_is_lost_is_told_that_the_snapshot_is_gone() -> None:
    with served() as exported, pytest.raises(SnapshotError, match="the held snapshot of the source is gone"):
        asked(exported, "SELECT 1")
