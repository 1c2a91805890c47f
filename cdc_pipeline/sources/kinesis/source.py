"""Streams of shards as a source. They hold changes alone, so their tables begin empty."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from cdc_pipeline.errors import StreamDenied
from cdc_pipeline.record import PARTITION_ENDED, TableName
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.aws import KinesisSource
from cdc_pipeline.sources.debezium.events_alone import EventsAlone
from cdc_pipeline.sources.debezium.memory import oldest_to_come
from cdc_pipeline.sources.debezium.partition import Content, Decode, SourceLine, debezium_content
from cdc_pipeline.sources.kinesis.dms import dms_content
from cdc_pipeline.sources.kinesis.kept import surveyed_shards
from cdc_pipeline.sources.kinesis.shards import ShardClient, ShardStream
from cdc_pipeline.sources.kinesis.survey import ShardSurvey
from cdc_pipeline.sources.known import KnownStream, PartitionProgress
from cdc_pipeline.sources.protocol import SourceCapabilities
from cdc_pipeline.time_slice import utc_now


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSource(EventsAlone):
    """Implements `Source` for streams of shards.

    `stream_of`: the name of a table's stream. `connect` returns a client, which connects at its first call. `unfit`:
    why a table of pipeline.yml cannot be read at all. `begins_kept`: a stream that was never read begins with what it
    still keeps. `pause`: between two reads of a shard. `look_every`: between two looks for new shards.
    """

    stream_of: Callable[[TableName], str]
    connect: Callable[[], ShardClient]
    decode_line: Decode
    begins_kept: bool
    pause: timedelta
    unfit: Mapping[TableName, str] = field(default_factory=dict)
    clock: Callable[[], datetime] = utc_now
    look_every: timedelta = timedelta(seconds=30)

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(follows_partitions=True, shares_partitions=True)

    def decode(self, raw: SourceLine) -> Content:
        return self.decode_line(raw)

    def survey(self, known: KnownStream, begin_again: Collection[TableName] = ()) -> ShardSurvey:
        """Surveys the streams. Raises SourceAway if AWS does not answer, SettingsError for changed types.

        Raises StreamDenied if the credentials may not describe a stream, and no other one is shown.
        """
        del begin_again
        registered = self.registered_tables(known)
        progress, now = known.progress(), self.clock()
        names = {table.table: self.stream_of(table.table) for table in self.tables}
        with closing(self.connect()) as client:
            streams, denied = _described(client, sorted(set(names.values())))
            shards = surveyed_shards(client, streams, progress, now, begins_kept=self.begins_kept)
        return ShardSurvey(
            source=self,
            listed=self.tables,
            progress=progress,
            registered=registered,
            streams=streams,
            denied=denied,
            stream_of=names,
            shards=shards,
            known=known,
            now=now,
        )

    def oldest_version_to_come(self, table: TableName, progress: Mapping[int, PartitionProgress]) -> str:
        """Returns the lowest version that a shard of the table's stream can still have that was not read to its end."""
        stream = self.stream_of(table)
        places = (reached for reached in progress.values() if PARTITION_ENDED not in reached.last_position)
        return oldest_to_come(table, places, lambda name: name.rpartition(" ")[0] == stream)


def _described(client: ShardClient, names: Iterable[str]) -> tuple[dict[str, ShardStream], dict[str, StreamDenied]]:
    """Returns the streams that exist, and those that these credentials may not describe, by name.

    Raises StreamDenied if there are only such ones: wrong credentials are not to look like missing streams.
    """
    found, denied = dict[str, ShardStream](), dict[str, StreamDenied]()
    for name in names:
        try:
            stream = client.describe(name)
        except StreamDenied as error:
            denied[name] = error
        else:
            found |= {} if stream is None else {name: stream}
    if denied and not found:
        raise denied[min(denied)]
    return found, denied


def kinesis_source(
    settings: KinesisSource, *, stream: str, tables: tuple[TableSettings, ...], connect: Callable[[], ShardClient]
) -> ShardSource:
    """Builds the source for streams of Kinesis. `stream`: the pipeline's name."""
    is_dms = settings.format == "dms"
    named = {(table.table.schema, table.table.table): table for table in tables}
    return ShardSource(
        stream=stream,
        kind=settings.kind,
        tables=tables,
        stream_of=settings.stream_of,
        connect=connect,
        decode_line=partial(dms_content, tables=named) if is_dms else debezium_content,
        begins_kept=settings.begin == "kept",
        pause=timedelta(seconds=1) / settings.reads_per_second,
        unfit={table.table: _UNTYPED for table in tables if is_dms and not (table.columns and table.id)},
    )


_UNTYPED = "records of AWS DMS have no types and no key: the table needs id and columns in pipeline.yml"
