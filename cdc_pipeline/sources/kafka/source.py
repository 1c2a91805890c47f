"""Topics of a Kafka cluster as a source. Brokers cannot copy tables, so its tables begin empty."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Never

from cdc_pipeline.errors import SettingsError, UsageError
from cdc_pipeline.record import Column, TableName, decode_position
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.sources.copied_rows import HeldPosition
from cdc_pipeline.sources.debezium.kept_lines import LineDecoder
from cdc_pipeline.sources.debezium.memory import PartitionMemory
from cdc_pipeline.sources.debezium.tables import DebeziumTables, refuse_changed_types
from cdc_pipeline.sources.debezium.versions import encode_place
from cdc_pipeline.sources.kafka.client import KafkaClient
from cdc_pipeline.sources.kafka.survey import TopicMap, TopicSurvey
from cdc_pipeline.sources.kafka.topics import read_cluster, read_topics
from cdc_pipeline.sources.known import FoundTable, KeptLog, KnownStream, KnownTable, NewBeginning, PartitionProgress
from cdc_pipeline.sources.protocol import SourceCapabilities, TableCopy
from cdc_pipeline.sources.quarantined import DecodedEvents, QuarantinedText


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTopics:
    """Implements `Source` for topics with Debezium's events.

    `stream`: the pipeline's name. `folder`: that of pipeline.yml, where relative paths begin. `tables`: those of
    pipeline.yml.
    """

    stream: str
    folder: Path
    settings: KafkaSource
    tables: tuple[TableSettings, ...]

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(
            copies_tables=False,
            keeps_order=True,
            keeps_ids_together=False,
            adds_partitions=True,
            follows_partitions=True,
            shares_partitions=True,
            proofs=frozenset(),
        )

    def list_tables(self) -> tuple[str, ...]:
        raise SettingsError(
            "include names tables by pattern, and the source is no database that could be asked for them",
            expected="tables, each by its name",
            remedy="list them under tables in pipeline.yml",
        )

    def missing_statements(self, known: KnownStream) -> tuple[str, ...]:
        """Returns nothing: Debezium creates the topics."""
        del known
        return ()

    def survey(self, known: KnownStream, begin_again: Collection[TableName] = ()) -> TopicSurvey:
        """Surveys the cluster's topics. Raises SourceAway if it does not answer, SettingsError for changed types."""
        del begin_again
        registered = known.tables()
        for table in self.tables:
            refuse_changed_types(table, registered.get(table.table))
        # The registered offsets are read first: meanwhile another consumer may register, and ends only grow.
        progress = known.progress()
        client = KafkaClient(self.settings, self.folder, group=self.stream)
        with closing(client):
            cluster = read_cluster(client)
            topic_map = TopicMap.of(self.settings, self.tables, cluster.topics)
            topics = read_topics(client, cluster, topic_map.topics)
        return TopicSurvey(
            stream=self.stream,
            folder=self.folder,
            settings=self.settings,
            listed=self.tables,
            progress=progress,
            registered=registered,
            cluster=cluster,
            topics=topics,
            topic_map=topic_map,
        )

    def begin_again(self, registered: str) -> NewBeginning:
        del registered
        self._is_no_database()

    def oldest_version_to_come(self, table: TableName, places: Mapping[int, PartitionProgress]) -> str:
        """Returns the lowest version that any stream partition can still have."""
        return min(
            (
                encode_place(
                    PartitionMemory.decode(place.last_position.get(str(table), "0")).position,
                    decode_position(place.offset),
                )
                for place in places.values()
            ),
            default="",
        )

    def hold_position(self, purpose: str, *, name: str) -> AbstractContextManager[HeldPosition]:
        del purpose, name
        self._is_no_database()

    def is_held(self, purpose: str, *, name: str) -> bool:
        del purpose, name
        return False

    def send_marker(self, text: str) -> bool:
        del text
        self._is_no_database()

    def copy_at(self, exported: str) -> AbstractContextManager[TableCopy]:
        del exported
        self._is_no_database()

    def check_copied(self, table: FoundTable) -> None:
        del table
        self._is_no_database()

    def kept_log(self) -> KeptLog | None:
        """Returns None: the pipeline does not decide how long a topic keeps its records."""
        return None

    def decode_quarantined(
        self,
        table: KnownTable,
        events: Sequence[QuarantinedText],
        *,
        columns: Mapping[str, Column],
        stream_partitions: Collection[int],
    ) -> Sequence[DecodedEvents]:
        """Decodes quarantined records with the present pipeline.yml."""
        del columns
        decoder = LineDecoder(
            table=table.name,
            horizon=table.horizon,
            settings=next(listed for listed in self.tables if listed.table == table.name),
            sequence_by=(),
            tables=DebeziumTables(self.tables, {} if table.schema is None else {table.name: table.schema}),
            stream_partitions=stream_partitions,
        )
        return decoder.decode(events)

    def leave(self, tables: Collection[TableName], *, whole: bool) -> tuple[str, ...]:
        """Removes nothing: the topics do not belong to the pipeline."""
        del tables, whole
        return ()

    def _is_no_database(self) -> Never:
        raise UsageError(
            f"the source of {self.stream} is of the kind {self.settings.kind}",
            expected="a PostgreSQL server, to take a snapshot of it or to compare the lake with it",
            remedy="its tables begin empty and need no snapshot: run cdc consume and cdc apply",
        )
