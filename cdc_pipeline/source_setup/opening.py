"""A consumer opened where the registry stands. Opening creates nothing, on the source or in the registry."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial

import structlog

from cdc_pipeline.consume.consumer import Consumer
from cdc_pipeline.consume.slice_cutter import SliceCutter
from cdc_pipeline.errors import SourceChanged, SourceError, StreamMoved, TableStale
from cdc_pipeline.metadata_store.ledger.records import Assignment
from cdc_pipeline.record import TableName
from cdc_pipeline.source_setup.log_watch import LogWatch
from cdc_pipeline.source_setup.registered import RegisteredStream, register_stream
from cdc_pipeline.source_setup.stale_tables import mark_stale, note_refused, note_stale, note_unlisted
from cdc_pipeline.source_setup.tables import follow_table, ignored_truncates, table_ids
from cdc_pipeline.sources.known import KnownTable, LastCut, PartitionPlace, StreamStart
from cdc_pipeline.sources.protocol import ChangeStream, SourceSurvey
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()

_SET_UP = "run cdc setup-source"


@contextmanager
def opened_consumer(pipeline: Pipeline) -> Iterator[Consumer]:
    """Takes every stream partition; whoever had them before gets StaleEpoch at its next registration.

    Known tables whose changes are incomplete become stale, those with other columns are followed. Raises SourceError
    where `cdc setup-source` has to be run first; StreamMoved, before anything of it is registered, when a table turns
    out to be stale while it is read.
    """
    survey = _ready_survey(pipeline)
    assignment = pipeline.store.streams.take_stream(
        pipeline.settings.name, owner=pipeline.owner, first_offset=survey.first_offset
    )
    with closing(survey.open(_start(pipeline, assignment))) as stream:
        try:
            yield _consumer(pipeline, survey, assignment, stream)
        except TableStale as error:
            mark_stale(pipeline, error)
            raise StreamMoved(error.found, remedy="open the consumer again: it reads on without that table") from error


def _ready_survey(pipeline: Pipeline) -> SourceSurvey:
    """What the source has of the registered tables; what changed of them is noted."""
    pipeline.cut_chain().catch_up()
    known = RegisteredStream(pipeline=pipeline)
    tables = known.tables()
    if known.identity() is None:
        raise SourceError(f"the stream {pipeline.settings.name} is not registered", remedy=_SET_UP)
    survey = pipeline.source.survey(known)
    _check_stream(pipeline, survey)
    survey.check_ready()
    _note_unregistered(pipeline, survey, tables)
    note_stale(pipeline, survey, tables)
    note_unlisted(pipeline)
    note_refused(survey)
    for table in survey.tables:
        if table.name in tables:
            follow_table(pipeline, table)
    return survey


def _check_stream(pipeline: Pipeline, survey: SourceSurvey) -> None:
    """Raises SourceChanged for another source, for a stream partition that is gone, and for one that is new."""
    name = pipeline.settings.name
    registered = pipeline.store.streams.stream_partitions(name)
    new = set(survey.stream_partitions) - set(registered)
    if new and pipeline.source.capabilities.adds_partitions:
        raise SourceChanged(
            f"the stream partition {min(new)} of the stream {name} is new",
            expected=f"the stream partitions {sorted(registered)}, which are registered",
            remedy=_SET_UP,
        )
    register_stream(pipeline, survey)  # all of it is registered: this compares, and creates nothing


def _note_unregistered(pipeline: Pipeline, survey: SourceSurvey, tables: Mapping[TableName, KnownTable]) -> None:
    """A table that pipeline.yml lists and nobody registered is not read.

    It loses nothing where a snapshot will copy it. Elsewhere its events would be passed over: raises SourceError then.
    """
    missing = [str(table.name) for table in survey.tables if table.name not in tables]
    if missing and not pipeline.source.capabilities.copies_tables:
        raise SourceError(
            f"{', '.join(missing)} is not registered",
            expected="every table of pipeline.yml, since events that are passed over do not come again",
            remedy=_SET_UP,
        )
    for name in missing:
        log.warning("table not read", table=name, found="it is not registered", remedy=_SET_UP)


def _start(pipeline: Pipeline, assignment: Assignment) -> StreamStart:
    """As of now, when nobody else can register a cut any more."""
    streams = pipeline.store.streams
    boundary = pipeline.store.lake_positions.last_boundary(assignment.stream)
    return StreamStart(
        places={
            number: PartitionPlace(offset=offset, last_position=assignment.last_position.get(number, {}))
            for number, offset in assignment.next_offset.items()
        },
        last_cut=None if boundary is None else LastCut(position=boundary.position, requested=boundary.requested),
        commit_time=assignment.label.start if assignment.label else None,
        tables=RegisteredStream(pipeline=pipeline).tables(),
        begun=streams.begun_files(assignment.stream),
        begin_file=partial(streams.begin_file, assignment),
    )


def _consumer(pipeline: Pipeline, survey: SourceSurvey, assignment: Assignment, stream: ChangeStream) -> Consumer:
    settings, ids = pipeline.settings, table_ids(pipeline)
    changing = {
        table.name: table.schema
        for table in survey.tables
        if table.is_changing and table.schema is not None and table.name in ids
    }
    return Consumer(
        assignment=assignment,
        stream=stream,
        cutter=SliceCutter(
            start=stream.position,
            commit_time=assignment.label.start if assignment.label else pipeline.clock(),
            slice_length=settings.slice_length,
            slice_rows=settings.source.slice_rows,
            last_label=assignment.label,
            cut_at=sorted({schema.generation for schema in changing.values()}),
        ),
        table_ids=ids,
        object_store=pipeline.objects,
        store=pipeline.store,
        chain=pipeline.cut_chain(),
        clock=pipeline.clock,
        on_step=pipeline.on_step,
        ignored_truncates=ignored_truncates(pipeline),
        check_tables=partial(_check_tables, pipeline, stream, LogWatch(pipeline=pipeline)),
        changing=changing,
    )


def _check_tables(pipeline: Pipeline, stream: ChangeStream, watch: LogWatch) -> None:
    """Raises StreamMoved if a table is not what it was when the stream was opened: the cut must not be registered."""
    known = RegisteredStream(pipeline=pipeline).tables()
    changed = stream.check({name: table.published_as for name, table in known.items()})
    for name, description in changed.items():
        pipeline.store.tables.set_shapes(pipeline.store.tables.table(name).table_id, description)
    watch.look()
