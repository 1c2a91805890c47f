"""MariaDB and MySQL as sources: the lake equals them after snapshot and slices, whatever step is killed."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cdc_pipeline.operations.verification import Verified
from cdc_pipeline.steps import Moment
from cdc_pipeline.wiring import Pipeline
from tests.crash.faults import all_faults, recorded
from tests.crash.steps import STREAM_TO_SLICES, lethal
from tests.crash.world import World, apply_all
from tests.support.mariadb import BinlogServerOfTests, numbers, run_mysql
from tests.support.pipelines import consume, mysql_settings, set_up_and_consume, take_snapshot

THINGS = (
    "CREATE TABLE things (id INT PRIMARY KEY, name VARCHAR(50), price DECIMAL(8,2), body TEXT, at TIMESTAMP(6) NULL)"
)
BAG = "CREATE TABLE bag (a INT, b VARCHAR(20) CHARACTER SET latin1)"
ROWS = "SELECT {0} + number, CONCAT('n', number), number / 3, REPEAT('x', 500), NOW(6) FROM numbers"
CHANGES = (
    f"INSERT INTO things {numbers(0, 5)} {ROWS}",
    "UPDATE things SET name = 'changed', at = NULL WHERE id = {0} + 1",
    "UPDATE things SET id = -id WHERE id = {0} + 2",
    "DELETE FROM things WHERE id = {0} + 3",
    "INSERT INTO bag VALUES (1, 'é'), (1, 'é'), ({0}, NULL)",
    "DELETE FROM bag WHERE a = 1 LIMIT 1",
)


class Changing:
    """Writes to the source: each call is one transaction with some of everything."""

    def __init__(self, url: str, database: str) -> None:
        self._url, self._database, self._rounds = url, database, 0

    def __call__(self) -> None:
        self._rounds += 1
        run_mysql(self._url, *(each.format(10 * self._rounds) for each in CHANGES), database=self._database)


@pytest.fixture
def change(binlog_server: BinlogServerOfTests) -> Changing:
    run_mysql(binlog_server.url, THINGS, BAG, database=binlog_server.database)
    return Changing(binlog_server.url, binlog_server.database)


@pytest.fixture
def world(change: Changing, binlog_server: BinlogServerOfTests, store_url: str, tmp_path: Path) -> Iterator[World]:
    settings = mysql_settings(
        tmp_path,
        binlog_server.url,
        binlog_server.database,
        [{"name": "things"}, {"name": "bag"}],
        slice_length="1d",
        snapshot={"snapshot_file_bytes": 16384},
    )
    with closing(World(settings=settings, source_url=binlog_server.url, store_url=store_url)) as world:
        yield world


def snapshot_all(pipeline: Pipeline) -> tuple[str, ...]:
    return tuple(found.state.value for found in take_snapshot(pipeline, *pipeline.table_names(), slots=2))


def differing(pipeline: Pipeline) -> list[Verified]:
    return [found for found in pipeline.verification().verify(pipeline.table_names()) if not found.is_equal]


def test_the_lake_equals_the_source_after_snapshot_and_slices(world: World, change: Changing) -> None:
    change()
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        change()
        assert snapshot_all(pipeline) == ("published", "published")
        change()
        consume(pipeline)
        apply_all(pipeline)
        change()
        assert differing(pipeline) == []


def test_a_consumer_killed_at_any_step_loses_nothing_and_doubles_nothing(world: World, change: Changing) -> None:
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        snapshot_all(pipeline)
    change()
    sites = lethal(recorded(world, consume), STREAM_TO_SLICES - {"source_log.record"})
    for fault, site in all_faults(sites):
        change()
        fault(world, consume, site)
    change()
    with world.process() as pipeline:
        consume(pipeline)
        apply_all(pipeline)
        assert differing(pipeline) == []


def test_a_snapshot_killed_while_it_is_held_or_copied_starts_over(world: World, change: Changing) -> None:
    change()
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
    held = {"position.hold", "snapshot.create", "source.copy"}
    sites = [site for site in recorded(world, snapshot_all) if site.name in held and site.moment is not Moment.BEFORE]
    for fault, site in all_faults(sites):
        change()
        fault(world, snapshot_all, site)
        world.expire_leases()
    change()
    with world.process() as pipeline:
        assert snapshot_all(pipeline) == ("published", "published")
        consume(pipeline)
        apply_all(pipeline)
        assert differing(pipeline) == []
