"""Every test has a metadata store of its own."""

from collections.abc import Iterator

import pytest

from cdc_pipeline.stack.postgres import PostgresServer
from tests.support.postgres import fresh_store


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    with fresh_store(postgres) as url:
        yield url
