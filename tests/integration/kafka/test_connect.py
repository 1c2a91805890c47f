"""Database, Debezium in Kafka Connect, four partitions, two consumers, lake: equal to the row, whatever is killed."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from subprocess import Popen

import pytest

from cdc_pipeline.demo.kafka import connect_command, mariadb_connector
from cdc_pipeline.demo.mariadb import MARIADB_SHOP, seed_mariadb
from cdc_pipeline.demo.seed import Scale, seed
from cdc_pipeline.demo.workload import POSTGRES_SHOP, Shop, Workload
from cdc_pipeline.launcher.launch import start
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.ports import free_port
from cdc_pipeline.wiring.against import verify_against
from tests.crash.world import World
from tests.support.command_line import CommandLine, consuming, query
from tests.support.debezium_connectors import postgres_connector
from tests.support.eventually import eventually
from tests.support.kafka import KafkaBroker, Topics
from tests.support.streams import database_of, run_sql

pytestmark = pytest.mark.kafka

SMALL = Scale(customers=100, products=10, orders=200, lines=3)
SHOP_TABLES = ("customers", "products", "orders", "order_items")
_SECONDS = 300
_FINISHED = 300
"""Transactions between two deaths: enough to lose or double some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A database that Debezium reads. `name`, `schema`: the first parts of its tables' names in pipeline.yml.

    `url`: for those who write, and for the proof.
    """

    url: str
    name: str
    schema: str
    keyless: str
    shop: Shop
    columns: Mapping[str, str]
    connector: Callable[[Path], Mapping[str, str]]

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(f"{self.schema}.{table}" for table in (*SHOP_TABLES, self.keyless))


@dataclass(slots=True, kw_only=True)
class Connect:
    """Kafka Connect as a process of its own, whose offsets outlive it."""

    folder: Path
    servers: str
    connector: Mapping[str, str]
    process: "Popen[bytes] | None" = None

    def start(self) -> None:
        command = connect_command(self.folder, servers=self.servers, port=free_port(), connectors=[self.connector])
        with (self.folder / "connect.log").open("ab") as output:
            self.process = start(command, environment=os.environ, folder=self.folder, output=output, tied=True)

    def kill(self) -> None:
        """`kill -9`."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    folder = tmp_path / "broker"
    folder.mkdir()
    broker = KafkaBroker(folder=folder)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(params=["postgres", "mariadb"])
def shop(request: pytest.FixtureRequest) -> Database:
    """The shop in one of the two databases, with a row in its keyless table, so that its topic exists."""
    if request.param == "postgres":
        url: str = request.getfixturevalue("database")
        seed(url, SMALL)
        run_sql(url, "INSERT INTO pgbench_history (tid, bid, aid, delta) VALUES (1, 1, 1, 1)")
        tables = [f"public.{table}" for table in (*SHOP_TABLES, "pgbench_history")]
        return Database(
            url=url,
            name=database_of(url),
            schema="public",
            keyless="pgbench_history",
            shop=POSTGRES_SHOP,
            columns={},
            connector=lambda _: postgres_connector(url, prefix="shop", tables=tables),
        )
    server, name = request.getfixturevalue("mariadb"), request.getfixturevalue("mysql_database")
    url = f"{server}/{name}"
    seed_mariadb(url, SMALL)
    tables = [f"{name}.{table}" for table in (*SHOP_TABLES, "visits")]
    return Database(
        url=url,
        name="shop",
        schema=name,
        keyless="visits",
        shop=MARIADB_SHOP,
        columns={"flags": "bit(5)"},
        connector=lambda folder: mariadb_connector(url, folder, prefix="shop", tables=tables),
    )


def document(shop: Database, servers: str) -> dict[str, object]:
    return {
        "name": "shop",
        "lake": "lake",
        "slice_length": "2s",
        "source": {"kind": "kafka", "servers": servers, "topic": "shop.{schema}.{table}"},
        "tables": [
            {"name": f"{shop.name}.{table}", "columns": dict(shop.columns) if table.endswith(".orders") else {}}
            for table in shop.tables
        ],
    }


def differences(world: World, url: str) -> Sequence[object]:
    with world.process() as pipeline:
        verdicts = verify_against(pipeline, pipeline.table_names(), url)
    return [verdict for verdict in verdicts if not verdict.is_equal]


def go_on(workload: Workload) -> None:
    """Waits until the sessions have written more."""
    before = sum(workload.counts().values())
    assert eventually(lambda: sum(workload.counts().values()) > before + _FINISHED, _SECONDS)


def quarantined(store_url: str) -> Sequence[object]:
    return query(store_url, "SELECT reason, count(*) FROM cdc.quarantine GROUP BY 1")


def test_the_lake_equals_the_database_though_consumer_broker_and_connect_are_killed(
    shop: Database, broker: KafkaBroker, tmp_path: Path, store_url: str
) -> None:
    folder = tmp_path / "connect"
    folder.mkdir()
    connect = Connect(folder=folder, servers=broker.servers, connector=shop.connector(folder))
    wanted = {f"shop.{table}" for table in shop.tables}
    cdc = CommandLine(folder=tmp_path, source_url=store_url, store_url=store_url)
    cdc.write_settings(**document(shop, broker.servers))
    settings = Settings.model_validate(document(shop, broker.servers) | {"folder": tmp_path})
    workload = Workload(shop.url, chance=Random(1), transactions_per_second=60, shop=shop.shop)
    with ExitStack() as stack:
        stack.callback(connect.kill)
        connect.start()
        assert eventually(lambda: wanted <= set(Topics(servers=broker.servers).names()), _SECONDS)
        assert cdc.run("setup-source").exit_code == 0
        first = stack.enter_context(consuming(cdc, "first"))
        stack.enter_context(consuming(cdc, "second"))
        workload.start()
        try:
            go_on(workload)
            connect.kill()
            go_on(workload)
            connect.start()
            go_on(workload)
            broker.kill()
            broker.start()
            go_on(workload)
            first.kill()
            go_on(workload)
        finally:
            workload.stop()
        with closing(World(settings=settings, source_url="", store_url=store_url)) as world:
            equal = eventually(lambda: differences(world, shop.url) == [], _SECONDS)
            assert equal, (differences(world, shop.url), quarantined(store_url))
