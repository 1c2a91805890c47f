"""Random changes of a shop's tables, with snapshots, deaths and restarts in between: the lake equals its source."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from pprint import pformat
from random import Random
from secrets import token_hex
from typing import Any

import psycopg2
import pymysql
import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from tests.fuzz.event_shop import events_shop
from tests.fuzz.event_sources import SOURCES, kafka_kind
from tests.fuzz.found import FOUND
from tests.fuzz.script import BEGIN, perform
from tests.fuzz.shops import Changes, Kept, Shop, mysql_shop, postgres_shop
from tests.fuzz.shrinking import shrunk

FIRST, COUNT = map(int, os.environ.get("CDC_FUZZ_SEEDS", "0,2").split(","))
SEEDS = range(FIRST, FIRST + COUNT)
KINDS = ("postgres", "mariadb", *SOURCES)
IN_TURNS = ((), pytest.mark.nightly)
"""Every other seed is for `make nightly`; neighbours begin with different ones, for a seed chooses settings too."""
WITH_SPARK = os.environ.get("CDC_FUZZ_LAKE") == "spark"
ROUNDS, LINES, MOST_RUNS = 3, 8, 80
WAYS: Sequence[dict[str, Any]] = ({}, {"rows_without_spark": 0}, {"upsert": "merge"})
"""How claims reach a lake on Spark."""
UNFORESEEN = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
LOST = 0.15
CHANGED = 0.1
VERBS = (*["consume"] * 5, *["apply"] * 4, *["snapshot"] * 2, "rewind", "maintain", "clean")
MOST_STEPS = {"consume": 40, "rewind": 30, "maintain": 20, "clean": 20}
LONG = 60
"""Steps of each other run."""


NewShop = Callable[[int], AbstractContextManager[Shop]]
"""Of a seed, which also says how the tables are kept."""


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_shop(request: pytest.FixtureRequest, kind: str, postgres: PostgresServer, tmp_path: Path) -> NewShop:
    spark_url = request.getfixturevalue("spark_url") if WITH_SPARK else ""
    binlog = request.getfixturevalue(kind) if kind in {"mariadb", "mysql8"} else ""
    sources = SOURCES | ({kind: kafka_kind(request.getfixturevalue(kind))} if kind == "kafka" else {})

    @contextmanager
    def opened(seed: int) -> Iterator[Shop]:
        folder, worker = tmp_path / token_hex(4), WAYS[seed % len(WAYS)] if spark_url else {}
        if kind in sources:
            with events_shop(sources[kind], seed, postgres, folder, spark_url, worker) as events:
                perform(events, "!settle")
                yield events
            return
        policy, partitions = ("keep", "drop")[seed % 2], 1 + seed // 2 % 2
        kept = Kept(dropped_columns=policy, stream_partitions=partitions, spark_url=spark_url, worker=worker)
        with mysql_shop(binlog, postgres, folder, kept) if binlog else postgres_shop(postgres, folder, kept) as shop:
            for line in BEGIN:
                perform(shop, line)
            yield shop

    return opened


def next_line(chance: Random, shop: Shop, changes: Changes) -> str:
    if chance.random() < 0.65:
        return changes.change()
    tables = [each.table.table for each in shop.world.settings.tables]
    if chance.random() < CHANGED:
        table = chance.choice(tables)
        return f"!set {table} {json.dumps(new_settings(chance, shop, table), ensure_ascii=False)}"
    if chance.random() < LOST:
        return chance.choice(["!lose", "!save", "!restore"])
    verb, line = next_run(chance, shop, tables)
    place = chance.randint(1, MOST_STEPS.get(verb, LONG))
    behind = (
        lambda: f" killed {place}",
        lambda: f" meanwhile {place} {changes.change()}",
        lambda: f" meanwhile {place} {changes.change()}",
        lambda: f" meanwhile {place} {next_run(chance, shop, tables)[1]}",
        lambda: "",
    )
    return line + chance.choice(behind)()


def next_run(chance: Random, shop: Shop, tables: Sequence[str]) -> tuple[str, str]:
    """A verb and its line."""
    verb = chance.choice((*VERBS, "verify", "verify", "repair") if shop.is_copied else VERBS)
    table = f" {chance.choice(tables)}" if verb in {"snapshot", "rewind", "repair"} else ""
    return verb, f"!{verb}{table}"


def new_settings(chance: Random, shop: Shop, table: str) -> dict[str, Any]:
    """Of a table, in place of some that it has."""
    columns = [name for name, _ in shop.columns(table)]
    kinds: list[dict[str, Any]] = [{"dropped_columns": chance.choice(["keep", "drop"])}]
    if shop.is_copied:
        kinds += [{"exclude_columns": sorted(chance.sample(columns, min(len(columns) - 1, chance.randrange(3))))}] * 2
    if WITH_SPARK and table != "notes":
        kinds += [{"history": True, "deletion_vectors": True}, {"history": False, "deletion_vectors": False}]
    return chance.choice(kinds)


def failure(new_shop: NewShop, seed: int, lines: Sequence[str]) -> str:
    """How the script fails; empty if it does not."""
    with new_shop(seed) as shop:
        return next((words for line in lines if (words := failing(shop, line))), "")


def failing(shop: Shop, line: str) -> str:
    """Of any error, since one that nobody foresaw is a finding too."""
    try:
        perform(shop, line)
    except (*UNFORESEEN, psycopg2.Error, pymysql.MySQLError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def fuzz(new_shop: NewShop, seed: int) -> tuple[list[str], str]:
    """Lines, and how the last of them fails."""
    chance, lines, words = Random(seed), list[str](), ""
    with new_shop(seed) as shop:
        changes = shop.changes(chance)
        for turn in range(ROUNDS * (LINES + 1)):
            lines.append(next_line(chance, shop, changes) if (turn + 1) % (LINES + 1) else "!settle")
            words = failing(shop, lines[-1])
            if words:
                break
    return lines, words


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        *(
            pytest.param(kind, seed, marks=IN_TURNS[(place + seed) % 2])
            for place, kind in enumerate(KINDS)
            for seed in SEEDS
        ),
        *(pytest.param("mysql8", seed, marks=pytest.mark.nightly) for seed in SEEDS),
        *(pytest.param("kafka", seed, marks=pytest.mark.kafka) for seed in SEEDS),
    ],
    indirect=["kind"],
)
def test_the_lake_equals_its_source_through_every_change_of_shape(new_shop: NewShop, seed: int) -> None:
    lines, words = fuzz(new_shop, seed)
    if words:
        short = shrunk(lines, lambda some: bool(failure(new_shop, seed, some)), most_runs=MOST_RUNS)
        pytest.fail(f"seed {seed}: {words}\nfor tests/fuzz/found.py: {pformat(tuple(short), width=120)}")


@pytest.mark.parametrize(("kind", "name"), FOUND, indirect=["kind"])
def test_what_the_fuzzer_once_found_stays_mended(new_shop: NewShop, kind: str, name: str) -> None:
    seed, lines = FOUND[kind, name]
    assert failure(new_shop, seed, (*lines, "!settle")) == ""
