"""The database of every test is a metadata store."""

import pytest


@pytest.fixture
def database(store_url: str) -> str:
    return store_url
