"""The shop on MariaDB and on MySQL, which several tests of their source use."""

from pathlib import Path

import pytest

from tests.support.mariadb import BinlogServerOfTests
from tests.support.mysql_source import MysqlShop


@pytest.fixture
def shop(binlog_server: BinlogServerOfTests, store_url: str, tmp_path: Path) -> MysqlShop:
    """A database of this test on each kind of server, and a pipeline over it."""
    return MysqlShop(folder=tmp_path, url=binlog_server.url, database=binlog_server.database, store_url=store_url)


@pytest.fixture
def mariadb_shop(mariadb: str, mysql_database: str, store_url: str, tmp_path: Path) -> MysqlShop:
    """The same on MariaDB alone."""
    return MysqlShop(folder=tmp_path, url=mariadb, database=mysql_database, store_url=store_url)
