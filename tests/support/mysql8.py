"""A real MySQL server for tests, unpacked from what set-up fetched."""

from collections.abc import Iterator
from contextlib import contextmanager

from cdc_pipeline.launcher.jars import jars_of, read_lock
from cdc_pipeline.launcher.project import JARS_LOCK
from tests.support.mariadb import started_server
from tests.support.unpacked import unpacked_server

OPTIONS = (
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--mysqlx=OFF",
    "--pid-file=pid",
    "--log-bin=binlog",
    "--server-id=1",
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--binlog-row-metadata=FULL",
    "--sync-binlog=0",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=16M",
    "--performance-schema=OFF",
)


@contextmanager
def started_mysql(*options: str) -> Iterator[str]:
    """The URL of a started server, as source.url has it."""
    (jar,) = jars_of(read_lock(JARS_LOCK), ["mysql"])
    folder = unpacked_server(jar, "mysql-Linux-amd64.tar.gz")
    server = [f"{folder}/bin/mysqld", "--no-defaults", f"--basedir={folder}"]
    create = [*server, "--initialize-insecure", "--innodb-log-file-size=16M", "--skip-log-bin"]
    with started_server(create, [*server, *OPTIONS, *options]) as url:
        yield url
