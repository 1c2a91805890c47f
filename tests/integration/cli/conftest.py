"""A source with one table, an empty metadata store, and `cdc` beside a pipeline.yml that names both."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from tests.support.command_line import CommandLine
from tests.support.command_server import CommandServer
from tests.support.postgres import fresh_store
from tests.support.streams import run_sql


@pytest.fixture
def cdc(
    postgres: PostgresServer, database: str, tmp_path: Path, command_server: CommandServer
) -> Iterator[CommandLine]:
    run_sql(database, "CREATE TABLE orders (id int PRIMARY KEY, note text)")
    with fresh_store(postgres) as store_url:
        command_line = CommandLine(folder=tmp_path, source_url=database, store_url=store_url, server=command_server)
        command_line.write_settings()
        yield command_line
