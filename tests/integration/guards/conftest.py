"""A metadata store for each test."""

from collections.abc import Iterator

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from tests.support.postgres import fresh_store


@pytest.fixture
def store_url(postgres: PostgresServer) -> Iterator[str]:
    with fresh_store(postgres) as url:
        yield url
