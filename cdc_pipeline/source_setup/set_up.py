"""The source made ready for the tables of pipeline.yml, and stream and tables registered."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from cdc_pipeline.errors import SourceError
from cdc_pipeline.record import TableName
from cdc_pipeline.source_setup.alarm import kept_alarm
from cdc_pipeline.source_setup.registered import RegisteredStream, register_stream
from cdc_pipeline.source_setup.stale_tables import note_refused, note_stale, note_unlisted
from cdc_pipeline.source_setup.tables import register_table
from cdc_pipeline.sources.known import PartitionPlace
from cdc_pipeline.wiring import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """The tables that are ready, and the statements that were run on the source.

    `refused`: tables that are not ready, each with the reason. They stop none of the others.
    """

    tables: tuple[TableName, ...]
    statements: tuple[str, ...] = ()
    refused: Mapping[TableName, SourceError] = field(default_factory=dict)


def missing_sql(pipeline: Pipeline) -> tuple[str, ...]:
    """The statements after which the source can be read, for an administrator; changes nothing."""
    return pipeline.source.missing_statements(RegisteredStream(pipeline=pipeline))


def set_up_source(pipeline: Pipeline, *, begin_again: Collection[TableName] = ()) -> SetUp:
    """Makes the source ready, registers stream and tables; idempotent. Tables that cannot be read are `refused`.

    Stale tables that are to `begin_again` are read again from now on, for their new snapshot. Known tables that cannot
    be read on become stale. What stops the whole stream is raised, and kept as its alarm.
    """
    with kept_alarm(pipeline):
        return _set_up(pipeline, begin_again)


def _set_up(pipeline: Pipeline, begin_again: Collection[TableName]) -> SetUp:
    pipeline.cut_chain().catch_up()
    known = RegisteredStream(pipeline=pipeline)
    before = known.tables()
    survey = pipeline.source.survey(known, begin_again)
    register_stream(pipeline, survey)
    note_stale(pipeline, survey, before)
    note_unlisted(pipeline)
    again = survey.stale.keys() & set(begin_again)
    ready = survey.set_up()
    note_refused(ready)
    for table in ready.tables:
        register_table(pipeline, table, begins_again=table.name in again)
    names = tuple(table.name for table in ready.tables)
    stale = {name: error for name, error in survey.stale.items() if name not in names}
    return SetUp(tables=names, statements=survey.statements, refused={**stale, **ready.refused})


def oldest_version_to_come(pipeline: Pipeline, table: TableName) -> str:
    """No event of the table that is registered from now on is older, except what comes back from quarantine."""
    name, streams = pipeline.settings.name, pipeline.store.streams
    places = streams.next_positions(name)
    if places.keys() != set(streams.stream_partitions(name)):
        return ""
    return pipeline.source.oldest_version_to_come(
        table,
        {number: PartitionPlace(offset=offset, last_position=seen) for number, (offset, seen) in places.items()},
    )
