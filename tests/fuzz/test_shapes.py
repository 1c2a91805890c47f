"""Random changes of a shop's tables, with snapshots, deaths and restarts in between: the lake equals its source."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from pprint import pformat
from random import Random
from secrets import token_hex

import psycopg2
import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from tests.crash.world import World
from tests.fuzz.found import FOUND
from tests.fuzz.script import BEGIN, perform, shop_world
from tests.fuzz.shop_changes import Shop
from tests.fuzz.shrinking import shrunk

FIRST, COUNT = map(int, os.environ.get("CDC_FUZZ_SEEDS", "0,2").split(","))
WITH_SPARK = os.environ.get("CDC_FUZZ_LAKE") == "spark"
ROUNDS, LINES, MOST_RUNS = 3, 8, 80
UNFORESEEN = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
MOST_STEPS = {"consume": 40, "apply": 60, "snapshot": 60}


NewShop = Callable[[int], AbstractContextManager[World]]


@pytest.fixture
def new_shop(request: pytest.FixtureRequest, postgres: PostgresServer, tmp_path: Path) -> NewShop:
    spark_url = request.getfixturevalue("spark_url") if WITH_SPARK else ""

    @contextmanager
    def opened(seed: int) -> Iterator[World]:
        policy, partitions = ("keep", "drop")[seed % 2], 1 + seed // 2 % 2
        own = tmp_path / token_hex(4)
        with shop_world(
            postgres, own, dropped_columns=policy, stream_partitions=partitions, spark_url=spark_url
        ) as world:
            for line in BEGIN:
                perform(world, line)
            yield world

    return opened


def next_line(chance: Random, shop: Shop) -> str:
    if chance.random() < 0.65:
        return shop.change()
    verb = chance.choice(["consume", "consume", "consume", "apply", "apply", "snapshot"])
    table = f" {chance.choice(['orders', 'customers', 'notes'])}" if verb == "snapshot" else ""
    place = chance.randint(1, MOST_STEPS[verb])
    match chance.randrange(4):
        case 0:
            return f"!{verb}{table} killed {place}"
        case 1 | 2:
            return f"!{verb}{table} meanwhile {place} {shop.change()}"
        case _:
            return f"!{verb}{table}"


def failure(new_shop: NewShop, seed: int, lines: Sequence[str]) -> str:
    """How the script fails; empty if it does not."""
    with new_shop(seed) as world:
        return next((words for line in lines if (words := failing(world, line))), "")


def failing(world: World, line: str) -> str:
    """Of any error, since one that nobody foresaw is a finding too."""
    try:
        perform(world, line)
    except (*UNFORESEEN, psycopg2.Error, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def fuzz(new_shop: NewShop, seed: int) -> tuple[list[str], str]:
    """Lines, and how the last of them fails."""
    chance, lines, words = Random(seed), list[str](), ""
    with new_shop(seed) as world:
        shop = Shop(chance=chance, query=world.query)
        for turn in range(ROUNDS * (LINES + 1)):
            lines.append(next_line(chance, shop) if (turn + 1) % (LINES + 1) else "!settle")
            words = failing(world, lines[-1])
            if words:
                break
    return lines, words


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_the_lake_equals_its_source_through_every_change_of_shape(new_shop: NewShop, seed: int) -> None:
    lines, words = fuzz(new_shop, seed)
    if words:
        short = shrunk(lines, lambda some: bool(failure(new_shop, seed, some)), most_runs=MOST_RUNS)
        pytest.fail(f"seed {seed}: {words}\nfor tests/fuzz/found.py: {pformat(tuple(short), width=120)}")


@pytest.mark.parametrize("name", FOUND)
def test_what_the_fuzzer_once_found_stays_mended(new_shop: NewShop, name: str) -> None:
    seed, lines = FOUND[name]
    assert failure(new_shop, seed, (*lines, "!settle")) == ""
