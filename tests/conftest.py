"""Fixtures that tests of several rooms share."""

import gc
import os
import secrets
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from cdc_pipeline.lake.session import untuned_session
from cdc_pipeline.launcher.postgres import PostgresServer
from tests.support.command_server import CommandServer, started_command_server
from tests.support.kafka import SecureKafka, started_kafka
from tests.support.mariadb import BinlogServerOfTests, fresh_mysql_database, started_mariadb
from tests.support.mysql8 import started_mysql
from tests.support.postgres import fresh_database, fresh_store, started_server
from tests.support.s3 import ACCOUNT, started_s3
from tests.support.shards import OTHER_DYNAMODB, OTHER_KINESIS
from tests.support.shared import folder_of_the_run, shared
from tests.support.spark import started_spark

NEEDS = {
    "postgres": "postgres",
    "spark_url": "spark",
    "s3_endpoint": "s3",
    "kafka_addresses": "kafka",
    "mariadb": "mysql",
    "mysql8": "mysql",
    "binlog_server": "mysql",
}
"""The fixture that starts a server -> mark."""
STACK_PLACES = {"acceptance", "chaos", "nightly"}
"""Folder or mark of a test of the whole stack."""
GARBAGE_THRESHOLD = 50_000
"""New objects until the youngest are looked through: a hundredth of what a worker may well keep for a moment."""
settings.register_profile("machine with neighbours", deadline=None)
settings.register_profile("fuzz", deadline=None)
settings.load_profile("machine with neighbours")


def pytest_configure() -> None:
    """Before anything is started: whoever runs the tests has other credentials, if any.

    And a shell that runs them in the background ignores the interrupt that tests send.
    """
    os.environ.update(ACCOUNT)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks each test by the servers that its fixtures start; `make test-fast` takes those without a mark.

    `make test` looks for tests of the whole stack in one folder only: to collect all others takes as long as a test.
    """
    for item in items:
        if item.get_closest_marker("stack") and not STACK_PLACES & {item.path.parent.name, *_marks(item)}:
            message = (
                f"{item.nodeid} has the mark stack; expected in tests/acceptance, or with the mark nightly or chaos"
            )
            raise pytest.UsageError(message)
        for fixture, mark in NEEDS.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)


def _marks(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers()}


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays, so nobody needs to look through it for garbage again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A started PostgreSQL with wal_level=logical: `postgres.url(database)`, `postgres.program("pgbench")`."""
    with started_server(dict(os.environ)) as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty database of this test."""
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def store_url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a metadata store of this test."""
    with fresh_store(postgres) as url:
        yield url


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`mysql://…` of a started MariaDB server, which all workers share."""
    with shared("mariadb", started_mariadb, folder_of_the_run(tmp_path_factory)) as url:
        yield url


@pytest.fixture(scope="session")
def mysql8(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`mysql://…` of a started MySQL server, which all workers share."""
    with shared("mysql8", started_mysql, folder_of_the_run(tmp_path_factory)) as url:
        yield url


@pytest.fixture(params=["mariadb", "mysql8"])
def binlog_server(request: pytest.FixtureRequest) -> Iterator[BinlogServerOfTests]:
    """An empty database of this test on a MariaDB server, and on a MySQL server."""
    url = request.getfixturevalue(request.param)
    with fresh_mysql_database(url) as name:
        yield BinlogServerOfTests(url=url, database=name)


@pytest.fixture
def mysql_database(mariadb: str) -> Iterator[str]:
    """The name of an empty database of this test on the MariaDB server."""
    with fresh_mysql_database(mariadb) as name:
        yield name


@pytest.fixture
def s3_prefix() -> str:
    """Of this test alone, in the bucket that all share."""
    return secrets.token_hex(6)


@pytest.fixture(scope="session")
def spark_url(tmp_path_factory: pytest.TempPathFactory, s3_endpoint: str) -> Iterator[str]:
    """`sc://…` of a started Spark Connect server, which all workers share."""
    folder = tmp_path_factory.mktemp("spark")
    with shared("spark", lambda: started_spark(folder, s3_endpoint), folder_of_the_run(tmp_path_factory)) as url:
        yield url


@pytest.fixture
def spark(spark_url: str) -> Iterator[SparkSession]:
    """A Spark session of this test alone."""
    session = untuned_session(spark_url)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def no_session_is_left_open() -> Iterator[None]:
    """The first session that nobody stops is PySpark's active one, asked on behalf of all later ones."""
    before = _active_session()
    yield
    assert _active_session() is before, "a Spark session was left open"


def _active_session() -> object:
    """Who has not imported PySpark's client has none, and need not wait for the import."""
    client = sys.modules.get("pyspark.sql.connect.session")
    return None if client is None else client.SparkSession.getActiveSession()


@pytest.fixture(scope="session")
def command_server() -> Iterator[CommandServer]:
    """For calls of `cdc` of which there are many: `tests.support.command_line.end_by`."""
    with started_command_server() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Addresses of a started Kafka broker, which all workers share."""
    folder = tmp_path_factory.mktemp("kafka")
    with shared("kafka", lambda: started_kafka(folder), folder_of_the_run(tmp_path_factory)) as addresses:
        yield addresses


@pytest.fixture
def kafka(kafka_addresses: str) -> str:
    """`127.0.0.1:port` of the broker. Each test has topics of its own."""
    return kafka_addresses.split(maxsplit=1)[0]


@pytest.fixture
def secure_kafka(kafka_addresses: str) -> SecureKafka:
    """The same broker, by an encrypted and authenticated connection."""
    return SecureKafka.parse(kafka_addresses)


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`http://…` of an S3 server with the bucket `tests.support.s3.BUCKET`, which all workers share."""
    with shared("s3", started_s3, folder_of_the_run(tmp_path_factory)) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def kinesis_endpoint(s3_endpoint: str) -> str:
    """`http://…` of a server that speaks Kinesis's protocol."""
    return os.environ.get(OTHER_KINESIS, s3_endpoint)


@pytest.fixture(scope="session")
def dynamodb_endpoint(s3_endpoint: str) -> str:
    """`http://…` of a server that speaks DynamoDB's protocol, that of its streams included."""
    return os.environ.get(OTHER_DYNAMODB, s3_endpoint)
