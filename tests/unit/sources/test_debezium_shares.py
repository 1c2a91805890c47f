"""A consumer that reads a part of a stream knows what was registered of the stream partitions that others read."""

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from cdc_pipeline.record import PARTITION_NAME, encode_position
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.sources.files.debezium_folders import DebeziumFolders
from cdc_pipeline.sources.files.source import FileSource
from cdc_pipeline.sources.files.survey import EventOrder
from cdc_pipeline.sources.kafka.survey import TopicSurvey, topics_of_tables
from cdc_pipeline.sources.kafka.topics import Cluster, KeptRecords, Topic
from cdc_pipeline.sources.known import KnownTable, PartitionProgress, StreamStart
from cdc_pipeline.sources.protocol import ChangeStream
from cdc_pipeline.steps import no_step
from tests.support.change_files import NothingKnown
from tests.support.transaction_lines import record
from tests.unit.sources.test_debezium_servers import EVENTS, KEYED, NEW, OLD, after_a_failover, mysql

TOPIC = "shop.ev"
KNOWN = {EVENTS: KnownTable(name=EVENTS, source_id=0, key=("id",), published_as="")}
LINES = [mysql(file, 600 + number, number, 2) for number, file in enumerate((NEW, OLD, OLD + 1))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown(NothingKnown):
    """A stream of one partition that had a failover and has a second partition now, of which nothing was read."""

    places: Mapping[int, PartitionProgress]

    def progress(self, among: Collection[int] | None = None) -> Mapping[int, PartitionProgress]:
        del among
        return self.places


def grown() -> Grown:
    state = {str(EVENTS): after_a_failover().registered[0][EVENTS], PARTITION_NAME: f"{TOPIC} [0]"}
    places = {
        0: PartitionProgress(offset=encode_position(17), last_position=state),
        1: PartitionProgress(offset=encode_position(0), last_position={PARTITION_NAME: f"{TOPIC} [1]"}),
    }
    return Grown(offset=encode_position(0), places=places)


def start(known: Grown) -> StreamStart:
    """That of the consumer to whom the second partition was given."""
    return StreamStart(
        progress={1: known.places[1]},
        last_cut=None,
        tables=KNOWN,
        begun={},
        begin_file=lambda _number, _name: 1,
    )


def from_topics(folder: Path) -> ChangeStream:
    settings = KafkaSource.model_validate({"kind": "kafka", "servers": "127.0.0.1:1", "topic": "{schema}.{table}"})
    kept = {0: KeptRecords(first=0, end=17), 1: KeptRecords(first=0, end=len(LINES))}
    topic = Topic(name=TOPIC, topic_id="A", is_compacted=False, retention=timedelta(days=1), kept=kept)
    known = grown()
    survey = TopicSurvey(
        stream="shop",
        folder=folder,
        settings=settings,
        listed=(KEYED,),
        progress=known.progress(),
        registered=KNOWN,
        cluster=Cluster(cluster_id="c", topics={TOPIC: len(kept)}),
        topics={TOPIC: topic},
        of_transactions=None,
        topics_of=topics_of_tables(settings, (KEYED,), [TOPIC]),
    )
    stream = survey.open(start(known))
    stream._records.partitions[1].waiting.extend(record(value, place) for place, value in enumerate(LINES))
    return stream


def from_folders(folder: Path) -> ChangeStream:
    for number in range(2):
        (folder / str(number)).mkdir()
    (folder / "1" / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    known, transport = grown(), DebeziumFolders(folder=folder, on_step=no_step)
    order = EventOrder(name="ordered")
    source = FileSource(kind="debezium_files", stream="shop", tables=(KEYED,), order=order, transport=transport)
    return source.survey(known).open(start(known))


@pytest.mark.parametrize("opened", [from_topics, from_folders])
def test_lower_places_that_a_partition_of_another_consumer_accepted_are_refused(
    opened: Callable[[Path], ChangeStream], tmp_path: Path
) -> None:
    with closing(opened(tmp_path)) as stream:
        batches = [batch for _ in range(2) if (batch := stream.read(timedelta(0))) is not None]
        registered = stream.progress_at(1)
    found = [events for batch in batches for events in batch.events]
    expected = "come from the server 2, at lower places in its log than those before"
    assert [expected in unfit.reason for events in found for unfit in events.unfit] == [True]
    assert [row["id"] for events in found for row in events.rows.to_pylist()][:1] == [1]
    assert registered.keys() == {1}
