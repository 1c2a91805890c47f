"""The pipeline's source made ready and registered, and the consumer that reads it from where the registry stands."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from cdc_pipeline.errors import SourceError
from cdc_pipeline.record import SNAPSHOT_ORDINAL, TableName, decode_position, encode_version
from cdc_pipeline.settings import PostgresSource
from cdc_pipeline.source_setup.files import oldest_of_files, set_up_files
from cdc_pipeline.source_setup.log_watch import look_at_log
from cdc_pipeline.source_setup.new_beginning import begin_stream_again
from cdc_pipeline.source_setup.postgres import missing_statements, set_up_server
from cdc_pipeline.source_setup.reading import consume, consume_until_idle, open_consumer, retried
from cdc_pipeline.sources.postgres.setup import SourcePlan
from cdc_pipeline.wiring import Pipeline

__all__ = [
    "SetUp",
    "begin_stream_again",
    "consume",
    "consume_until_idle",
    "look_at_log",
    "missing_sql",
    "oldest_version_to_come",
    "open_consumer",
    "retried",
    "set_up_source",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """The tables that are ready, and the statements for the source that make them so.

    `refused`: tables that are not, each with why. They stop none of the others.
    """

    tables: tuple[TableName, ...]
    statements: tuple[str, ...] = ()
    refused: Mapping[TableName, SourceError] = field(default_factory=dict)


def missing_sql(pipeline: Pipeline) -> tuple[str, ...]:
    """The statements after which the source can be read, for whoever may run them; changes nothing."""
    return missing_statements(pipeline) if isinstance(pipeline.settings.source, PostgresSource) else ()


def _set_up(plan: SourcePlan) -> SetUp:
    names = tuple(table.name for table in plan.tables)
    return SetUp(tables=names, statements=plan.statements, refused={**plan.stale, **plan.refused})


def set_up_source(pipeline: Pipeline, *, begin_again: Collection[TableName] = ()) -> SetUp:
    """The source can be read, stream and tables are registered. Idempotent; tables that cannot be read are `refused`.

    Stale tables that are to `begin_again` are read again from now on, for their new snapshot.
    """
    source = pipeline.settings.source
    if isinstance(source, PostgresSource):
        return _set_up(set_up_server(pipeline, begin_again).plan)
    set_up_files(pipeline, source)
    return SetUp(tables=pipeline.table_names())


def oldest_version_to_come(pipeline: Pipeline, table: TableName) -> str:
    """No event of the table that is registered from now on is older, except what comes back from quarantine."""
    source = pipeline.settings.source
    if isinstance(source, PostgresSource):
        offset = pipeline.store.streams.next_offset(pipeline.settings.name)
        return "" if offset is None else encode_version(decode_position(offset), SNAPSHOT_ORDINAL)
    return oldest_of_files(pipeline, source, table)
