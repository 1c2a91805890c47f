"""The stream of a pipeline as the metadata store has it, for a source that does not know the store."""

from dataclasses import dataclass

from cdc_pipeline.metadata_store.ledger.records import SourceTable, Stream
from cdc_pipeline.metadata_store.models.states import TableState
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.known import KnownTable, StreamIdentity
from cdc_pipeline.sources.protocol import SourceSurvey
from cdc_pipeline.wiring import Pipeline

_NOT_NOTED = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredStream:
    """Follows `KnownStream`. Every call reads the store."""

    pipeline: Pipeline

    def identity(self) -> StreamIdentity | None:
        name, streams = self.pipeline.settings.name, self.pipeline.store.streams
        if not streams.stream_partitions(name):
            return None
        stream = streams.stream(name)
        return StreamIdentity(
            system=stream.source_system_identifier, timeline=stream.source_timeline, channel=stream.slot
        )

    def next_offset(self) -> str | None:
        return self.pipeline.store.streams.next_offset(self.pipeline.settings.name)

    def tables(self) -> dict[TableName, KnownTable]:
        listed = {table.table for table in self.pipeline.settings.tables}
        return {
            row.name: known_table(self.pipeline.store, row)
            for row in stored_tables(self.pipeline)
            if row.name in listed
        }


def stream_of(pipeline: Pipeline, identity: StreamIdentity) -> Stream:
    return Stream(
        name=pipeline.settings.name,
        source_system_identifier=identity.system,
        source_timeline=identity.timeline,
        slot=identity.channel,
    )


def register_stream(pipeline: Pipeline, survey: SourceSurvey) -> None:
    """Registers the stream and its partitions, or a successor of its server. Durable on return, idempotent.

    Raises SourceChanged for a stream that was registered for another source, and for a stream partition that is gone.
    """
    stream, streams = stream_of(pipeline, survey.identity), pipeline.store.streams
    if survey.is_successor:
        streams.follow(stream)
    if pipeline.source.capabilities.adds_partitions:
        streams.extend_stream(stream, survey.stream_partitions)
    else:
        streams.register_stream(stream, stream_partitions=len(survey.stream_partitions))


def stored_tables(pipeline: Pipeline) -> list[SourceTable]:
    """The registered tables of the pipeline's stream, also those that pipeline.yml does not list any more."""
    return [row for row in pipeline.store.tables.tables() if row.stream == pipeline.settings.name]


def known_table(store: MetadataStore, row: SourceTable) -> KnownTable:
    return KnownTable(
        name=row.name,
        source_id=row.source_oid,
        key=tuple(row.settings.get("id", ())),
        published_as=_published_as(row),
        reason=row.parked_reason or "",
        description=tuple(row.shape or ()),
        schema=None if row.schema_id is None else store.tables.schema(row.table_id, row.schema_id),
        horizon=row.horizon,
    )


def _published_as(row: SourceTable) -> str | None:
    is_noted = row.publication_mark is not None or row.state is TableState.STALE
    return row.publication_mark if is_noted else _NOT_NOTED
