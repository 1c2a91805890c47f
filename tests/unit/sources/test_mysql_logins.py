"""What a server says to a login is an error of the source, for sessions and for the reader of the log alike."""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest

from cdc_pipeline.errors import SourceAway, SourceError
from cdc_pipeline.sources.mysql.binlog import BinlogReader
from cdc_pipeline.sources.mysql.dialect import MYSQL
from cdc_pipeline.sources.mysql.gtid_set import GtidSet
from cdc_pipeline.sources.mysql.session import MysqlAddress, connect

SALT = b"12345678"
GREETING = (
    b"\x0a10.11.0-MariaDB\0"
    + struct.pack("<I", 7)
    + SALT
    + b"\0"
    + struct.pack("<HBHHB", 0xF7FF, 45, 2, 0x0008, len(SALT) + 13)
    + bytes(10)
    + b"123456789012\0mysql_native_password\0"
)
NOT_LET_IN = (1045, 1129, 1130, 1698, 1820, 1862, 3118, 3955, 4151)


def asking_for(plugin: bytes) -> bytes:
    return b"\xfe" + plugin + b"\0" + bytes(32)


def refusing(code: int) -> bytes:
    return b"\xff" + struct.pack("<H", code) + b"#HY000in words of the server"


@contextmanager
def answering_server(answer: bytes) -> Iterator[MysqlAddress]:
    """A server that gives this one answer to whoever logs in."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(ConnectionError):
                    connection.sendall(struct.pack("<I", len(GREETING)) + GREETING)
                    connection.recv(65536)
                    connection.sendall(struct.pack("<I", len(answer) | 2 << 24) + answer)
                    connection.recv(65536)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield MysqlAddress(host="127.0.0.1", port=listener.getsockname()[1], user="cdc", password="p")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def read_log(address: MysqlAddress) -> object:
    reader = BinlogReader(address, dialect=MYSQL, server_id=7, start=GtidSet(), schemas=["shop"], tables=["orders"])
    return reader.next_event()


either_way = pytest.mark.parametrize("log_in", [connect, read_log])


@either_way
@pytest.mark.parametrize("plugin", [b"client_ed25519", b"parsec"])
def test_a_login_that_the_driver_does_not_have_names_the_page_with_those_it_has(
    plugin: bytes, log_in: Callable[[MysqlAddress], object]
) -> None:
    another = r"give the user one of the authentication plug-ins that docs/how-to/mysql\.md names"
    with answering_server(asking_for(plugin)) as address, pytest.raises(SourceError, match=another) as refused:
        log_in(address)
    assert not isinstance(refused.value, SourceAway)


@either_way
@pytest.mark.parametrize("code", NOT_LET_IN)
def test_a_user_who_is_not_let_in_is_away_until_somebody_mends_that(
    code: int, log_in: Callable[[MysqlAddress], object]
) -> None:
    with answering_server(refusing(code)) as address, pytest.raises(SourceAway, match="in words of the server"):
        log_in(address)
