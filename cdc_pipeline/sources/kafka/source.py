"""Topics of a Kafka cluster as a source. Brokers cannot copy tables, so its tables begin empty."""

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from cdc_pipeline.record import TableName
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.sources.debezium.events_alone import EventsAlone
from cdc_pipeline.sources.debezium.memory import oldest_to_come
from cdc_pipeline.sources.kafka.client import KafkaClient
from cdc_pipeline.sources.kafka.survey import TopicSurvey, topics_of_tables
from cdc_pipeline.sources.kafka.topics import (
    read_cluster,
    read_topics,
    read_transaction_topic,
    refuse_unknown,
    topic_of,
    without_shared,
)
from cdc_pipeline.sources.known import KnownStream, PartitionProgress
from cdc_pipeline.sources.protocol import SourceCapabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTopics(EventsAlone):
    """Implements `Source` for topics with Debezium's events. `folder`: that of pipeline.yml, where paths begin."""

    folder: Path
    settings: KafkaSource

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(
            follows_partitions=True,
            # A boundary over all partitions has one owner.
            shares_partitions=self.settings.transactions is None,
        )

    def survey(self, known: KnownStream, begin_again: Collection[TableName] = ()) -> TopicSurvey:
        """Surveys the cluster's topics. Raises SourceAway if it does not answer, SettingsError for changed types."""
        del begin_again
        registered = self.registered_tables(known)
        # The registered offsets are read first: meanwhile another consumer may register, and ends only grow.
        progress = known.progress()
        client = KafkaClient(self.settings, self.folder, group=self.stream)
        with closing(client):
            cluster = read_cluster(client)
            named = topics_of_tables(self.settings, self.tables, cluster.topics)
            transactions = self.settings.transactions
            topics = read_topics(client, cluster, set().union(*named.values()))
            refuse_unknown(topics.values())
            of_transactions = None if transactions is None else read_transaction_topic(client, cluster, transactions)
        topics_of = topics_of_tables(self.settings, self.tables, topics)
        return TopicSurvey(
            stream=self.stream,
            folder=self.folder,
            settings=self.settings,
            listed=self.tables,
            progress=progress,
            registered=registered,
            cluster=cluster,
            topics=without_shared(topics, topics_of),
            of_transactions=of_transactions,
            topics_of=topics_of,
        )

    def oldest_version_to_come(self, table: TableName, places: Mapping[int, PartitionProgress]) -> str:
        """Returns the lowest version that any partition of the table's topics can still have.

        "" where it may get more topics: one may be of another server, whose log has only begun.
        """
        if self.settings.has_more_topics:
            return ""
        pattern = self.settings.topic_pattern(table)
        return oldest_to_come(table, places.values(), lambda name: pattern.fullmatch(topic_of(name)) is not None)
