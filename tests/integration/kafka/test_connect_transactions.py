"""A bank, Debezium with transaction metadata, and a consumer: the sums agree at every boundary, whoever is killed.

Each of the bank's transactions adds one amount to a teller and to a branch, and writes it down in the history, which
has no id. So the three sums agree in every state that the source ever had, and in no other. In PostgreSQL the bank is
pgbench's; in MariaDB it has tables of the same shape.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cdc_pipeline.demo.kafka import mariadb_connector
from cdc_pipeline.demo.mariadb import MARIADB_SHOP
from cdc_pipeline.demo.seed import seed
from cdc_pipeline.demo.transactions import Kind
from cdc_pipeline.demo.workload import POSTGRES_SHOP, Shop, Workload
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from tests.integration.kafka.test_connect import SMALL, Connect, broker, go_on
from tests.support.boundaries import tables_at_boundaries
from tests.support.command_line import CommandLine, consuming, query
from tests.support.debezium_connectors import postgres_connector
from tests.support.event_files import NOBODY_LISTENS
from tests.support.eventually import eventually
from tests.support.kafka import KafkaBroker, Topics
from tests.support.mariadb import run_mysql
from tests.support.pipelines import opened_pipeline
from tests.support.streams import database_of, run_sql

pytestmark = pytest.mark.kafka

BANK = {"tellers": ("tid", "tbalance"), "branches": ("bid", "bbalance"), "history": (None, "delta")}
METADATA = {
    "provide.transaction.metadata": "true",
    "topic.creation.groups": "keyless,transactions",
    "topic.creation.transactions.include": r"bank\.transaction",
    "topic.creation.transactions.partitions": "1",
    "topic.creation.transactions.replication.factor": "1",
}
MARIADB_TABLES = (
    "CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int NOT NULL)",
    "CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int NOT NULL)",
    "CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int)",
    "INSERT INTO pgbench_tellers SELECT seq, 1, 0 FROM seq_1_to_10",
    "INSERT INTO pgbench_branches VALUES (1, 0)",
)
TRANSFER = Kind(
    name="transfer",
    share=1,
    statements=(
        "SET @tid = floor(1 + rand() * 10), @amount = floor(rand() * 1000) - 500",
        "UPDATE pgbench_tellers SET tbalance = tbalance + @amount WHERE tid = @tid",
        "UPDATE pgbench_branches SET bbalance = bbalance + @amount WHERE bid = 1",
        "INSERT INTO pgbench_history (tid, bid, aid, delta) VALUES (@tid, 1, 1, @amount)",
    ),
)
FIRST = "INSERT INTO pgbench_history (tid, bid, aid, delta) VALUES (1, 1, 1, 0)"
"""A topic exists from its first record on."""
_HISTORY = "SELECT count(*), coalesce(sum(delta), 0) FROM pgbench_history"
_SECONDS = 300

__all__ = ["broker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bank:
    """`name`, `schema`: the first parts of its tables' names in pipeline.yml. `run`: executes a statement."""

    url: str
    name: str
    schema: str
    shop: Shop
    run: Callable[[str], object]
    rows: Callable[[str], Sequence[tuple[Any, ...]]]
    connector: Callable[[Path], Mapping[str, str]]

    @property
    def tables(self) -> list[str]:
        return [f"{self.schema}.pgbench_{table}" for table in BANK]

    def written(self) -> tuple[int, int]:
        """The number of lines in the history, and their sum."""
        ((count, total),) = self.rows(_HISTORY)
        return int(count), int(total)


@pytest.fixture(params=["postgres", "mariadb"])
def bank(request: pytest.FixtureRequest) -> Bank:
    if request.param == "postgres":
        url: str = request.getfixturevalue("database")
        seed(url, SMALL)
        tables = [f"public.pgbench_{table}" for table in BANK]
        return Bank(
            url=url,
            name=database_of(url),
            schema="public",
            shop=POSTGRES_SHOP,
            run=lambda statement: run_sql(url, statement),
            rows=lambda statement: query(url, statement),
            connector=lambda _: postgres_connector(url, prefix="bank", tables=tables),
        )
    server, name = request.getfixturevalue("mariadb"), request.getfixturevalue("mysql_database")
    run_mysql(server, *MARIADB_TABLES, database=name)
    tables = [f"{name}.pgbench_{table}" for table in BANK]
    return Bank(
        url=f"{server}/{name}",
        name="bank",
        schema=name,
        shop=replace(MARIADB_SHOP, kinds=(TRANSFER,), long=TRANSFER),
        run=lambda statement: run_mysql(server, statement, database=name),
        rows=lambda statement: run_mysql(server, statement, database=name),
        connector=lambda folder: mariadb_connector(f"{server}/{name}", folder, prefix="bank", tables=tables),
    )


def document(bank: Bank, servers: str) -> dict[str, object]:
    return {
        "name": "bank",
        "lake": "lake",
        "slice_length": "1s",
        "source": {
            "kind": "kafka",
            "servers": servers,
            "topic": "bank.{schema}.{table}",
            "transactions": "bank.transaction",
        },
        "tables": [{"name": f"{bank.name}.{table}"} for table in bank.tables],
    }


def sums(settings: Settings, store_url: str) -> list[list[int]]:
    """The three sums at each boundary."""
    columns = {TableName.parse(table.name): table.name.rpartition("_")[2] for table in settings.tables}
    ids = {name: BANK[table][0] for name, table in columns.items()}
    with opened_pipeline(settings, store_url=store_url, spark_url=NOBODY_LISTENS) as pipeline:
        return [
            [sum(row[BANK[columns[name]][1]] for row in rows.values()) for name, rows in tables.items()]
            for tables in tables_at_boundaries(pipeline, ids)
        ]


def test_the_sums_agree_at_every_boundary_though_consumer_and_connect_are_killed(
    bank: Bank, broker: KafkaBroker, tmp_path: Path, store_url: str
) -> None:
    bank.run(FIRST)
    folder = tmp_path / "connect"
    folder.mkdir()
    connector = {**bank.connector(folder), **METADATA}
    connect = Connect(folder=folder, servers=broker.servers, connector=connector)
    cdc = CommandLine(folder=tmp_path, source_url=store_url, store_url=store_url)
    cdc.write_settings(**document(bank, broker.servers))
    settings = Settings.model_validate(document(bank, broker.servers) | {"folder": tmp_path})
    topics, wanted = Topics(servers=broker.servers), {f"bank.{table}" for table in bank.tables}
    workload = Workload(bank.url, chance=Random(1), transactions_per_second=30, shop=bank.shop)
    with ExitStack() as stack:
        stack.callback(connect.kill)
        connect.start()
        assert eventually(lambda: wanted <= set(topics.names()), _SECONDS)
        bank.run(FIRST)
        assert eventually(lambda: "bank.transaction" in topics.names(), _SECONDS)
        assert cdc.run("setup-source").exit_code == 0
        workload.start()
        try:
            for number in range(3):
                with consuming(cdc, f"consumer {number}"):
                    go_on(workload)
                    connect.kill()
                    connect.start()
                    go_on(workload)
        finally:
            workload.stop()
        with consuming(cdc, "last"):
            caught_up = eventually(lambda: sums(settings, store_url)[-1:] == [[bank.written()[1]] * 3], _SECONDS)
    found = sums(settings, store_url)
    assert [number for number, each in enumerate(found) if len(set(each)) > 1] == []
    assert caught_up, (found[-1:], bank.written())
    assert len(found) > 20
    said = "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("*.log"))
    assert "a boundary may have a part of a transaction" not in said, said
