"""pgbench, Debezium with transaction metadata, and a consumer: the sums agree at every boundary, whoever is killed.

Each of pgbench's transactions adds one amount to a teller and to a branch, and writes it down in the history, which has
no id. So the three sums agree in every state that the source ever had, and in no other.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from cdc_pipeline.demo.kafka import postgres_connector
from cdc_pipeline.demo.seed import seed
from cdc_pipeline.demo.workload import POSTGRES_SHOP, Workload
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from tests.integration.kafka.test_connect import SMALL, Connect, broker, go_on
from tests.support.boundaries import tables_at_boundaries
from tests.support.command_line import CommandLine, consuming, query
from tests.support.event_files import NOBODY_LISTENS
from tests.support.eventually import eventually
from tests.support.kafka import KafkaBroker, Topics
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
FIRST = "INSERT INTO pgbench_history (tid, bid, aid, delta) VALUES (1, 1, 1, 0)"
"""A topic exists from its first record on."""
_HISTORY = "SELECT count(*), coalesce(sum(delta), 0) FROM pgbench_history"
_SECONDS = 300

__all__ = ["broker"]


def document(database: str, servers: str) -> dict[str, object]:
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
        "tables": [{"name": f"{database}.public.pgbench_{table}"} for table in BANK],
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


def written(url: str) -> Sequence[object]:
    ((count, total),) = query(url, _HISTORY)
    return count, total


def test_the_sums_agree_at_every_boundary_though_consumer_and_connect_are_killed(
    broker: KafkaBroker, database: str, tmp_path: Path, store_url: str
) -> None:
    seed(database, SMALL)
    run_sql(database, FIRST)
    folder = tmp_path / "connect"
    folder.mkdir()
    tables = [f"public.pgbench_{table}" for table in BANK]
    connector = postgres_connector(database, prefix="bank", tables=tables) | METADATA
    connect = Connect(folder=folder, servers=broker.servers, connector=connector)
    cdc = CommandLine(folder=tmp_path, source_url=store_url, store_url=store_url)
    cdc.write_settings(**document(database_of(database), broker.servers))
    settings = Settings.model_validate(document(database_of(database), broker.servers) | {"folder": tmp_path})
    topics, wanted = Topics(servers=broker.servers), {f"bank.{table}" for table in tables}
    workload = Workload(database, chance=Random(1), transactions_per_second=30, shop=POSTGRES_SHOP)
    with ExitStack() as stack:
        stack.callback(connect.kill)
        connect.start()
        assert eventually(lambda: wanted <= set(topics.names()), _SECONDS)
        run_sql(database, FIRST)
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
            caught_up = eventually(lambda: sums(settings, store_url)[-1:] == [[written(database)[1]] * 3], _SECONDS)
    found = sums(settings, store_url)
    assert [number for number, each in enumerate(found) if len(set(each)) > 1] == []
    assert caught_up, (found[-1:], written(database))
    assert len(found) > 20
    said = "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("*.log"))
    assert "a boundary may have a part of a transaction" not in said, said
