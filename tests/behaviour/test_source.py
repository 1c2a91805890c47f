"""What every source promises: order, resumption at every offset, true capabilities, an opening that only reads."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.errors import SourceError, UsageError
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import VERSION
from cdc_pipeline.sources.known import PartitionProgress
from cdc_pipeline.wiring import Pipeline, utc_now
from tests.support.dynamodb_arm import DynamodbArm
from tests.support.event_files import events_of
from tests.support.kafka_arm import KafkaArm
from tests.support.kinesis_arm import KinesisArm
from tests.support.mariadb import fresh_mysql_database
from tests.support.memory_source import Change
from tests.support.pipelines import consume
from tests.support.postgres import fresh_store
from tests.support.s3 import s3_objects
from tests.support.shards import KinesisStreams
from tests.support.source_arms import ChangeFilesArm, FilesArm, MemoryArm, MysqlArm, PostgresArm, SourceArm
from tests.support.source_reading import Seen, read_to_now, reader

UNORDERED = {"ordered": False, "sequence_by": ["source.lsn"], "late_by": "7d"}
TRANSACTIONS: tuple[tuple[Change, ...], ...] = (
    (("i", 1, "one"),),
    (("i", 2, "two"), ("u", 1, "uno"), ("i", 3, "three")),
    (("d", 2, None),),
    (("u", 3, "tre"),),
)
CHANGES = [change for transaction in TRANSACTIONS for change in transaction]


ARMS = (
    "postgres",
    "mariadb",
    "mysql8",
    "files",
    "unordered files",
    "DMS files",
    "Datastream files on S3",
    "memory",
    "kinesis",
    "dynamodb",
    pytest.param("kafka", marks=pytest.mark.kafka),
    pytest.param("kafka with transactions", marks=pytest.mark.kafka),
)


@pytest.fixture(params=ARMS)
def arm(
    request: pytest.FixtureRequest, postgres: PostgresServer, tmp_path: Path, s3_prefix: str
) -> Iterator[SourceArm]:
    with fresh_store(postgres) as store_url:
        files = FilesArm(folder=tmp_path, store_url=store_url)
        match request.param:
            case "postgres":
                url = request.getfixturevalue("database")
                yield PostgresArm(folder=tmp_path, url=url, store_url=store_url)
            case "mariadb" | "mysql8" as server:
                url = request.getfixturevalue(server)
                with fresh_mysql_database(url) as name:
                    yield MysqlArm(folder=tmp_path, url=url, database=name, store_url=store_url)
            case "files":
                yield files
            case "unordered files":
                yield replace(files, more=UNORDERED)
            case "kafka" | "kafka with transactions" as kind:
                servers, announced = request.getfixturevalue("kafka"), kind != "kafka"
                yield KafkaArm(folder=tmp_path, servers=servers, store_url=store_url, announced=announced)
            case "kinesis" | "dynamodb" as kind:
                endpoint = request.getfixturevalue(f"{kind}_endpoint")
                yield on_shards(kind, tmp_path, store_url, endpoint)
            case "DMS files":
                objects = LocalObjectStore(tmp_path / "changes")
                yield ChangeFilesArm(folder=tmp_path, store_url=store_url, objects=objects, source={"format": "dms"})
            case "Datastream files on S3":
                endpoint = request.getfixturevalue("s3_endpoint")
                yield ChangeFilesArm(
                    folder=tmp_path,
                    store_url=store_url,
                    objects=s3_objects(endpoint, s3_prefix),
                    source={"format": "datastream", "late_by": "7d"},
                    more={"object_store": {"endpoint": endpoint}},
                )
            case "memory":
                yield MemoryArm(files=files)


def on_shards(kind: str, folder: Path, store_url: str, endpoint: str) -> SourceArm:
    if kind == "dynamodb":
        return DynamodbArm(folder=folder, store_url=store_url, endpoint=endpoint)
    return KinesisArm(folder=folder, store_url=store_url, streams=KinesisStreams(endpoint=endpoint))


@pytest.fixture
def written(arm: SourceArm) -> SourceArm:
    """Set up, with transactions that nobody has read."""
    with arm.opened() as pipeline:
        pipeline.source_setup().set_up()
    for transaction in TRANSACTIONS:
        arm.commit(*transaction)
    return arm


def registry(pipeline: Pipeline) -> list[Any]:
    """Stream partitions and tables, and what is registered of them."""
    name = pipeline.settings.name
    return [pipeline.store.streams.stream_partitions(name), pipeline.store.tables.tables()]


def test_events_come_in_the_order_of_their_transactions_with_rising_versions(written: SourceArm) -> None:
    with written.opened() as pipeline, reader(pipeline) as stream:
        seen = read_to_now(stream, "cut:1")
    assert [(kind, id_) for _, kind, id_ in seen.changes] == [(kind, id_) for kind, id_, _ in CHANGES]
    versions = [version for version, _, _ in seen.changes]
    assert versions == sorted(set(versions))
    ends = [position for transaction in seen.transactions for position in transaction]
    assert ends == sorted(ends)
    assert {event[0] for event in seen.events} <= {start for start, _ in seen.transactions}


def test_a_reader_goes_on_at_every_offset_without_loss_and_without_doubles(written: SourceArm) -> None:
    with written.opened() as pipeline:
        with reader(pipeline) as stream:
            whole = read_to_now(stream, "cut:1")
            progress = {end: stream.progress_at(end) for _, end in whole.transactions}
        for number, end in enumerate(progress):
            with reader(pipeline, with_all_begun(progress, end), end) as stream:
                rest = read_to_now(stream, f"cut:resumed {number}")
            assert stream.position == end
            assert behind(end, rest) == behind(end, whole)


def behind(position: int, seen: Seen) -> list[tuple[int, str, str, int]]:
    """What the slice cutter keeps: a source may send again what lies before the position."""
    return [event for event in seen.events if event[0] >= position]


def with_all_begun(progress: Mapping[int, Mapping[int, PartitionProgress]], end: int) -> dict[int, PartitionProgress]:
    """The progress at `end`, with every file that was begun until then."""
    return {
        number: replace(
            reached,
            begun={key: name for at in progress if at <= end for key, name in progress[at][number].begun.items()},
        )
        for number, reached in progress[end].items()
    }


def test_what_was_read_and_not_registered_comes_again_as_it_was(written: SourceArm) -> None:
    with written.opened() as pipeline:
        with reader(pipeline) as stream:
            first = read_to_now(stream, "cut:1")
        with reader(pipeline) as stream:
            again = read_to_now(stream, "cut:2")
    assert again.events == first.events
    assert again.events


def test_a_restarted_consumer_registers_nothing_twice(written: SourceArm) -> None:
    for _ in range(2):
        with written.opened() as pipeline:
            consume(pipeline)
    with written.opened() as pipeline:
        row = pipeline.store.tables.table(written.table)
        slices = pipeline.store.slices.slices(row.table_id, 1, 100)
    assert sum(each.rows for each in slices) == len(CHANGES)


def test_a_marker_message_comes_behind_all_that_was_committed_before_it(arm: SourceArm) -> None:
    with arm.opened() as pipeline:
        pipeline.source_setup().set_up()
        with reader(pipeline) as stream:
            assert read_to_now(stream, "cut:1").events == []
            arm.commit(("i", 1, "one"))
            seen = read_to_now(stream, "cut:2")
    assert [id_ for _, _, id_ in seen.changes] == [1]
    assert seen.marks[-1] == "cut:2"


def test_an_idle_source_is_known_to_be_read_up_to_now(written: SourceArm) -> None:
    if isinstance(written, MemoryArm):
        pytest.skip("its clock stands")
    for _ in range(2):
        started = utc_now()
        with written.opened() as pipeline:
            consume(pipeline)
            newest, *_ = pipeline.store.inspection.run("boundaries")
        assert newest["commit_time"] >= started.replace(microsecond=0), "some servers have no smaller times"


def test_set_up_is_idempotent(arm: SourceArm) -> None:
    with arm.opened() as pipeline:
        first = pipeline.source_setup().set_up()
        made, registered = arm.made(), registry(pipeline)
        again = pipeline.source_setup().set_up()
        assert (arm.made(), registry(pipeline)) == (made, registered)
        assert (again.tables, again.statements, again.refused) == (first.tables, (), {})
        assert pipeline.source_setup().missing_sql() == ()


def test_looking_at_what_is_missing_changes_nothing(arm: SourceArm) -> None:
    made = arm.made()
    with arm.opened() as pipeline:
        pipeline.source_setup().missing_sql()
        pipeline.source.survey(pipeline.registered_stream())
        assert (arm.made(), registry(pipeline)) == (made, [(), ()])


def test_a_reader_that_finds_nothing_set_up_names_the_command_and_creates_nothing(arm: SourceArm) -> None:
    arm.commit(("i", 1, "one"))
    made = arm.made()
    with arm.opened() as pipeline:
        with pytest.raises(SourceError, match="run cdc setup-source"), pipeline.consumer_runs().open():
            pass
        assert (arm.made(), registry(pipeline)) == (made, [(), ()])


def test_opening_a_reader_creates_nothing(written: SourceArm) -> None:
    with written.opened() as pipeline:
        before = written.made(), registry(pipeline)
        with pipeline.consumer_runs().open():
            pass
        assert (written.made(), registry(pipeline)) == before


def test_only_a_source_that_copies_tables_holds_positions_and_proves_by_rows(written: SourceArm) -> None:
    with written.opened() as pipeline:
        source = pipeline.source
        if not source.capabilities.copies_tables:
            with pytest.raises(UsageError):
                source.hold_position("test", name="a")
            with pytest.raises(UsageError):
                source.copy_at("")
            return
        table = pipeline.registered_stream().tables()[written.table]
        assert table.schema is not None
        with source.hold_position("test", name="a") as held:
            assert source.is_held("test", name="a")
            written.commit(("i", 9, "later"))
            with source.copy_at(held.exported) as copy:
                found = copy.description(table)
                assert found is not None
                assert copy.columns(table) == table.schema.columns
                whole = [row for block in copy.rows(written.table, table.schema) for row in block.rows.to_pylist()]
                parts = [
                    row
                    for part in copy.parts(written.table, 8192)
                    for block in copy.rows(written.table, table.schema, part)
                    for row in block.rows.to_pylist()
                ]
            source.check_copied(found, 2)
        assert whole == parts == [{"id": 1, "note": "uno"}, {"id": 3, "note": "tre"}]
        assert not source.is_held("test", name="a")
        with reader(pipeline) as stream:
            seen = read_to_now(stream, "cut:1")
    assert [id_ for position, _, _, id_ in seen.events if position >= held.position] == [9]


def test_order_is_what_the_capabilities_say(written: SourceArm) -> None:
    with written.opened() as pipeline:
        capabilities = pipeline.source.capabilities
        assert capabilities.orders_ids(1) is capabilities.keeps_order
        partitions = len(pipeline.store.streams.stream_partitions(pipeline.settings.name))
        assert pipeline.lake_table(written.table).ordered is capabilities.orders_ids(partitions)
        assert capabilities.orders_ids(2) is (capabilities.keeps_order and capabilities.copies_tables)


def test_no_event_is_older_than_the_oldest_version_to_come(written: SourceArm) -> None:
    with written.opened() as pipeline:
        consume(pipeline)
        oldest = pipeline.source_setup().oldest_version_to_come(written.table)
    written.commit(("i", 7, "later"))
    with written.opened() as pipeline:
        consume(pipeline)
        (newest,) = [row for row in events_of(pipeline, written.table) if row["id"] == 7]
    assert newest[VERSION] >= oldest


def test_what_set_up_made_is_removed_at_the_end(arm: SourceArm) -> None:
    before = arm.made()
    with arm.opened() as pipeline:
        pipeline.source_setup().set_up()
        made = [each for each in arm.made() if each not in before]
        assert made or not pipeline.source.capabilities.copies_tables
        for transaction in TRANSACTIONS:
            arm.commit(*transaction)
        for _ in range(2):
            assert pipeline.source.leave([arm.table], whole=True) == ()
        assert [each for each in arm.made() if each in made] == []
