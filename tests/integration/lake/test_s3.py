"""A lake on S3, written by one Spark driver and by two at the same moment."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.append_or_merge import Upsert
from cdc_pipeline.lake.protocol import LakePublication, LakeTable, UpsertOutcome
from cdc_pipeline.lake.session import connect
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.launcher.jars import DELTA, S3, jars_of, present_jars, read_lock
from cdc_pipeline.launcher.log_store import ON_S3
from cdc_pipeline.launcher.project import JARS, JARS_LOCK
from cdc_pipeline.launcher.spark import s3_settings, spark_home
from cdc_pipeline.object_store.s3 import S3ObjectStore
from cdc_pipeline.settings import ObjectStoreSettings
from cdc_pipeline.steps import Moment, OnStep, no_step
from tests.support.faulty_server import ACTED_AND_500, ACTED_AND_CUT, Fault, FaultyServer, Request, faulty
from tests.support.lake import Feed, event, move, rows_by_spark, table_of, values_by_id
from tests.support.lakes import published, spark_lake
from tests.support.s3 import REGION, s3_location
from tests.support.spark import QUICK_PROGRAM, started_spark

COMMIT_ON_S3 = Path(__file__).parents[2] / "support" / "CommitOnS3.java"
IDEMPOTENCY = "spark.databricks.delta.commit.idempotencyCheck.enabled"

pytestmark = pytest.mark.xdist_group("two drivers")


class Killed(Exception):
    pass


def killed_after(name: str) -> OnStep:
    def on_step(step: str, moment: Moment) -> None:
        if (step, moment) == (name, Moment.AFTER):
            raise Killed

    return on_step


@pytest.fixture
def store(s3_endpoint: str, s3_prefix: str) -> S3ObjectStore:
    return S3ObjectStore(s3_location(s3_endpoint, s3_prefix), is_proven=False)


def lake_of(
    session: SparkSession, store: S3ObjectStore, on_step: OnStep = no_step, *, upsert: Upsert = "append"
) -> SparkLake:
    return spark_lake(session, store, upsert=upsert, on_step=on_step)


def test_a_lake_on_s3_is_created_published_merged_into_fenced_and_resumed(
    session: SparkSession, store: S3ObjectStore
) -> None:
    table = table_of(name="shop.public.bücher & %")
    lake = lake_of(session, store)
    lake.create_table(table)
    files = published(store, lake, table, people=10, snapshot_id="s1")
    assert values_by_id(table, rows_by_spark(session, store, table)) == {}
    lake.publish(table, LakePublication(snapshot_id="s1", files=files, fence_number=7))
    feed = Feed(store=store, table=table, next_number=8)
    work = feed.claim(
        [event("u", 101, 5, name="new", age=50), event("d", 102, 6), event("i", 103, 11, name="eleven", age=11)],
        [event("u", 104, 7, age=70), *move(105, (8,), (80,), name="moved", age=8)],
    )
    with pytest.raises(Killed):
        lake_of(session, store, killed_after("lake_table.merge")).upsert(table, work)
    resumed = lake.upsert(table, work)
    assert resumed.already_applied
    expected = {(number,): (f"n{number}", number) for number in range(10) if number not in {6, 8}}
    expected |= {(5,): ("new", 50), (11,): ("eleven", 11), (7,): ("n7", 70), (80,): ("moved", 8)}
    assert values_by_id(table, rows_by_spark(session, store, table)) == expected

    lake.upsert(table, feed.claim([]))
    fence = lake.read_fence(table)
    assert fence is not None
    assert (fence.number, fence.lake_version) == (work.last_number + 1, resumed.lake_version + 1)
    lake.optimize(table)
    assert values_by_id(table, rows_by_spark(session, store, table)) == expected


@dataclass
class Rivalry:
    """Two drivers. Whatever `other` is about to commit waits at `server` until `before_commit` has returned."""

    one: SparkSession
    other: SparkSession
    server: FaultyServer
    before_commit: Callable[[int], Fault | None] = lambda _: None
    commits: list[str] = field(default_factory=list)

    def rule(self, request: Request) -> Fault | None:
        """Asked once per commit; what the driver tries again passes."""
        if not request.is_delta_commit or request.path in self.commits:
            return None
        self.commits.append(request.path)
        return self.before_commit(len(self.commits))


@pytest.fixture(scope="module")
def other_driver(
    s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SparkSession, FaultyServer]]:
    """A second Java machine, which reaches the same bucket by a proxy of ours."""
    with faulty(s3_endpoint) as server, started_spark(tmp_path_factory.mktemp("other-driver"), server.endpoint) as url:
        session = connect(url)
        session.conf.set(IDEMPOTENCY, "false")
        yield session, server
        session.stop()


@pytest.fixture
def rivalry(session: SparkSession, other_driver: tuple[SparkSession, FaultyServer]) -> Iterator[Rivalry]:
    other, server = other_driver
    rivalry = Rivalry(one=session, other=other, server=server)
    server.rule = rivalry.rule
    yield rivalry
    server.rule = lambda _: None


def place(store: S3ObjectStore, scheme: str) -> str:
    return f"delta.`{store.spark_url('race').replace('s3a://', f'{scheme}://')}`"


def race_of_appends(rivalry: Rivalry, table: str, rounds: int, fault: Fault | None = None) -> list[int]:
    """In each round both drivers append a row, `one` at the very moment when `other` commits; the rows that are there.

    Both are told that they succeeded, or this raises.
    """

    def append_at_the_same_time(number: int) -> Fault | None:
        if number <= rounds:
            rivalry.one.sql(f"INSERT INTO {table} VALUES ({100 + number})").collect()
        return fault

    rivalry.one.sql(f"CREATE TABLE {table} (id BIGINT) USING delta").collect()
    rivalry.before_commit = append_at_the_same_time
    for number in range(1, rounds + 1):
        rivalry.other.sql(f"INSERT INTO {table} VALUES ({number})").collect()
    return sorted(row.id for row in rivalry.one.sql(f"SELECT id FROM {table}").collect())


@pytest.mark.nightly
def test_of_two_drivers_that_append_at_one_moment_no_commit_is_lost(rivalry: Rivalry, store: S3ObjectStore) -> None:
    assert race_of_appends(rivalry, place(store, "s3a"), rounds=1) == [1, 101]
    assert len(rivalry.commits) == 2


def test_with_the_log_store_of_delta_itself_the_same_race_loses_a_commit(
    rivalry: Rivalry, store: S3ObjectStore
) -> None:
    assert race_of_appends(rivalry, place(store, "s3"), rounds=1) == [1]


@pytest.mark.parametrize("fault", [ACTED_AND_CUT, ACTED_AND_500])
def test_a_commit_whose_answer_was_lost_counts_once_also_in_a_race(
    rivalry: Rivalry, store: S3ObjectStore, fault: Fault
) -> None:
    assert race_of_appends(rivalry, place(store, "s3a"), rounds=1, fault=fault) == [1, 101]
    assert len(rivalry.server.faults) >= 2


def test_of_two_drivers_that_merge_one_claim_at_one_moment_one_has_an_effect(
    rivalry: Rivalry, store: S3ObjectStore
) -> None:
    table: LakeTable = table_of()
    successor, zombie = (lake_of(driver, store, upsert="merge") for driver in (rivalry.one, rivalry.other))
    successor.create_table(table)
    work = Feed(store=store, table=table).claim([event("i", 1, 1, name="a", age=1), event("i", 2, 2, name="b", age=2)])
    applied = []
    rivalry.before_commit = lambda number: applied.append(successor.upsert(table, work)) if number == 1 else None
    with pytest.raises(LakeError):
        zombie.upsert(table, work)
    assert [outcome.counts.inserted for outcome in applied] == [2]
    assert zombie.upsert(table, work).already_applied
    assert values_by_id(table, rows_by_spark(rivalry.one, store, table)) == {(1,): ("a", 1), (2,): ("b", 2)}


def test_of_two_workers_that_append_one_claim_at_one_moment_one_has_an_effect(
    session: SparkSession, spark_url: str, store: S3ObjectStore
) -> None:
    table: LakeTable = table_of()
    other = connect(spark_url)
    successor = lake_of(other, store)
    successor.create_table(table)
    work = Feed(store=store, table=table).claim([event("i", 1, 1, name="a", age=1), event("i", 2, 2, name="b", age=2)])
    applied = list[UpsertOutcome]()

    def rival(name: str, moment: Moment) -> None:
        if (name, moment) == ("lake_table.merge", Moment.BEFORE) and not applied:
            applied.append(successor.upsert(table, work))

    try:
        assert lake_of(session, store, rival).upsert(table, work).already_applied
    finally:
        other.stop()
    assert [outcome.counts.inserted for outcome in applied] == [2]
    assert values_by_id(table, rows_by_spark(session, store, table)) == {(1,): ("a", 1), (2,): ("b", 2)}


def test_a_commit_that_found_no_room_while_it_was_written_is_not_there_in_part(
    s3_endpoint: str, store: S3ObjectStore, tmp_path: Path
) -> None:
    """S3A uploads files of a folder; no file may be larger here than the commit."""
    key = "race/_delta_log/00000000000000000000.json"
    jars = [*present_jars(JARS, jars_of(read_lock(JARS_LOCK), [DELTA, S3])), ON_S3.jar(JARS), spark_home() / "jars/*"]
    server = ObjectStoreSettings(endpoint=s3_endpoint, region=REGION, path_style=True)
    settings = {"fs.s3a.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"} | {
        name.removeprefix("spark.hadoop."): value for name, value in s3_settings(server, folder=str(tmp_path)).items()
    }
    java = ["java", *QUICK_PROGRAM, "-cp", ":".join(map(str, jars)), str(COMMIT_ON_S3)]
    arguments = [store.spark_url(key), *(word for pair in settings.items() for word in pair)]
    limited = ["sh", "-c", 'ulimit -f 32; exec "$@"', "sh", *java, *arguments]
    refused = subprocess.run(limited, check=False, capture_output=True, encoding="utf-8")
    assert "File too large" in refused.stderr
    assert list(store.list_prefix("race")) == []
    subprocess.run([*java, *arguments], check=True, capture_output=True)
    assert len(store.get(key)) == (1 << 18) + 1
