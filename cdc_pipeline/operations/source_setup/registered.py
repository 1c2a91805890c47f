"""Reads a pipeline's stream and tables from the metadata store, for a source that does not know the store."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from cdc_pipeline.errors import CdcError, PartitionFailed, SourceError, StaleEpoch
from cdc_pipeline.metadata_store.ledger.records import SourceTable, Stream
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.record import Column, TableName
from cdc_pipeline.sources.known import KnownTable, PartitionProgress, StreamIdentity
from cdc_pipeline.sources.protocol import SourceCapabilities, SourceSurvey

_NOT_NOTED = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredStream:
    """Implements `KnownStream`. Every call reads the store. `listed`: the tables of pipeline.yml."""

    name: str
    listed: frozenset[TableName]
    store: MetadataStore

    def identity(self) -> StreamIdentity | None:
        if not self.store.streams.count_partitions(self.name, most=1):
            return None
        stream = self.store.streams.stream(self.name)
        return StreamIdentity(
            system=stream.source_system_identifier, timeline=stream.source_timeline, channel=stream.slot
        )

    def next_offset(self) -> str | None:
        return self.store.streams.next_offset(self.name)

    def progress(self, among: Collection[int] | None = None) -> dict[int, PartitionProgress]:
        found = self.store.streams.progress(self.name, among)
        return {
            number: PartitionProgress(offset=offset or "", last_position=seen)
            for number, (offset, seen) in found.items()
        }

    def tables(self) -> dict[TableName, KnownTable]:
        columns = self.store.tables.columns_of_tables()
        return {row.name: known_table(self.store, row, columns.get(row.table_id, ())) for row in self._listed_rows()}

    def published(self) -> dict[TableName, str | None]:
        """Returns how the source published each registered table of pipeline.yml, as `KnownTable` has it."""
        return {row.name: _published_as(row) for row in self._listed_rows()}

    def table_ids(self) -> dict[TableName, int]:
        """Returns the id of each registered table of pipeline.yml."""
        return {row.name: row.table_id for row in self._listed_rows()}

    def _listed_rows(self) -> list[SourceTable]:
        return [row for row in self.store.tables.tables() if row.name in self.listed]

    def stream_of(self, identity: StreamIdentity) -> Stream:
        return Stream(
            name=self.name,
            source_system_identifier=identity.system,
            source_timeline=identity.timeline,
            slot=identity.channel,
        )

    def register(self, survey: SourceSurvey, capabilities: SourceCapabilities) -> None:
        """Registers the stream and its partitions, or the server that succeeds the registered one.

        Durable on return, idempotent. Raises SourceChanged if the stream was registered for another source, or if a
        stream partition is gone. Raises StreamMoved if another consumer registered a new one since the survey began.
        """
        stream, streams = self.stream_of(survey.identity), self.store.streams
        if survey.is_successor:
            streams.follow(stream)
        if capabilities.copies_tables:
            streams.register_stream(stream, stream_partitions=len(survey.stream_partitions))
        else:
            partitions = survey.stream_partitions
            names = partitions if isinstance(partitions, Mapping) else dict.fromkeys(partitions, "")
            streams.extend_stream(stream, names, surveyed_all=capabilities.follows_partitions)

    @contextmanager
    def kept_alarm(self, owner: str | None = None) -> Iterator[None]:
        """Stores an error that leaves the block as the stream's alarm, until the next cut, and raises it again.

        `owner`: a consumer that shares the stream, so that only its stream partitions have the alarm.
        StaleEpoch is no alarm: another process took over. Retryable errors are alarms only if the source raised them.
        """
        try:
            yield
        except StaleEpoch:
            raise
        except CdcError as error:
            if not error.retryable or isinstance(error, SourceError):
                only = error.stream_partition if isinstance(error, PartitionFailed) else None
                alarm = f"{type(error).__name__}: {error}"
                self.store.streams.raise_alarm(self.name, alarm, owner=owner, stream_partition=only)
            raise


def known_table(store: MetadataStore, row: SourceTable, columns: tuple[Column, ...] = ()) -> KnownTable:
    """`columns`: every column that the table ever had, oldest first, for whoever compares their types."""
    return KnownTable(
        name=row.name,
        source_id=row.source_oid,
        key=tuple(row.settings.get("id", ())),
        published_as=_published_as(row),
        reason=row.state_reason or "",
        description=tuple(row.shape or ()),
        schema=None if row.schema_id is None else store.tables.schema(row.table_id, row.schema_id),
        columns=columns,
        horizon=row.horizon,
        excluded=row.excluded_columns if row.settings else None,
    )


def _published_as(row: SourceTable) -> str | None:
    is_noted = row.published_as is not None or row.state is TableState.STALE
    return row.published_as if is_noted else _NOT_NOTED
