"""Fixtures that tests of several rooms share."""

import os
from collections.abc import Iterator

import pytest

from cdc_pipeline.stack.postgres import PostgresServer
from tests.support.postgres import fresh_database, started_server


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
