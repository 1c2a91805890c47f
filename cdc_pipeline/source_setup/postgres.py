"""A PostgreSQL server made ready and registered, and the consumer that reads its slot."""

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import structlog

from cdc_pipeline.consume.consumer import Consumer
from cdc_pipeline.errors import SourceError, StreamMoved, TableStale
from cdc_pipeline.metadata_store.rows import Assignment, Stream
from cdc_pipeline.record import TableName, decode_position, encode_position
from cdc_pipeline.source_setup.consumers import consumer_of
from cdc_pipeline.source_setup.log_watch import LogWatch
from cdc_pipeline.source_setup.slot_guards import refuse_gap, refuse_other_server
from cdc_pipeline.source_setup.table_guards import (
    OpenTables,
    known_tables,
    mark_stale,
    note_refused,
    note_stale,
    note_unlisted,
)
from cdc_pipeline.source_setup.tables import register_table
from cdc_pipeline.sources.postgres.catalogue import Server, Slot, read_server, read_slot
from cdc_pipeline.sources.postgres.publication import Publication, read_publication
from cdc_pipeline.sources.postgres.session import session
from cdc_pipeline.sources.postgres.setup import SourcePlan, execute_plan, plan_source
from cdc_pipeline.sources.postgres.statements import missing_on_source
from cdc_pipeline.sources.postgres.stream import PostgresStream
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The source as it was found ready, with the slot that is there now, and each table's publication mark."""

    plan: SourcePlan
    slot: Slot
    marks: dict[TableName, str]


def missing_statements(pipeline: Pipeline) -> tuple[str, ...]:
    """All that is missing on the source, for whoever may run it; changes nothing.

    Raises SourceError for what no statement mends, once nothing else is in its way.
    """
    source, tables = pipeline.settings.postgres, pipeline.settings.tables
    with session(pipeline.source_url) as connection:
        statements = missing_on_source(connection, source, tables)
        if not statements:
            plan_source(connection, source, tables, known_tables(pipeline))
    return statements


def set_up_server(pipeline: Pipeline, begin_again: Collection[TableName] = ()) -> Prepared:
    """Publication and slot exist, stream and tables are registered. Idempotent; refuses by name what cannot work.

    A known table that cannot be read on is marked stale and left out, unless it is to `begin_again`. Raises the first
    refusal where no table is known and none can be read.
    """
    settings, source = pipeline.settings, pipeline.settings.postgres
    pipeline.cut_chain().catch_up()
    with session(pipeline.source_url) as connection:
        known = known_tables(pipeline)
        plan = plan_source(connection, source, settings.tables, known)
        if not known and not plan.tables:
            raise next(iter(plan.refused.values()))
        refuse_other_server(pipeline, plan.server, plan.slot)
        stream = stream_of(pipeline, plan.server)
        pipeline.store.streams.register_stream(stream, stream_partitions=source.stream_partitions)
        refuse_gap(pipeline, plan.slot, plan.server)
        note_stale(pipeline, plan, known)
        note_unlisted(pipeline)
        again = plan.stale.keys() & set(begin_again)
        if again:
            plan = plan_source(connection, source, settings.tables, known, again)
        execute_plan(connection, plan, pipeline.on_step)
        slot = read_slot(connection, source.slot)
        publication = read_publication(connection, source.publication)
    if slot is None:
        raise SourceError(f"the slot {source.slot} was not created", remedy="run cdc setup-source again")
    plan, marks = _published(plan, source.publication, publication)
    note_refused(plan)
    for table in plan.tables:
        register_table(
            pipeline,
            table.name,
            source_oid=table.oid,
            key=table.schema.key,
            schema=table.schema,
            publication_mark=marks[table.name],
            shapes=table.shapes,
            begins_again=table.name in again,
        )
    return Prepared(plan=plan, slot=slot, marks=marks)


def stream_of(pipeline: Pipeline, server: Server) -> Stream:
    return Stream(
        name=pipeline.settings.name,
        source_system_identifier=server.system_identifier,
        source_timeline=server.timeline,
        slot=pipeline.settings.postgres.slot,
    )


def _published(
    plan: SourcePlan, publication_name: str, publication: Publication | None
) -> tuple[SourcePlan, dict[TableName, str]]:
    """The plan without tables that the publication holds otherwise than under their own name; the marks of the rest."""
    found = {} if publication is None else {table.name: publication.of(table.name) for table in plan.tables}
    marks = {name: published.mark for name, published in found.items() if published is not None}
    refused = {
        table.name: SourceError(
            f"the publication {publication_name} does not hold {table.name} under its own name",
            expected="publish_via_partition_root = true where a table has partitions",
            remedy=f'run ALTER PUBLICATION "{publication_name}" SET (publish_via_partition_root = true)',
        )
        for table in plan.tables
        if table.name not in marks
    }
    left = tuple(table for table in plan.tables if table.name in marks)
    return replace(plan, tables=left, refused={**plan.refused, **refused}), marks


@contextmanager
def open_slot_consumer(pipeline: Pipeline) -> Iterator[Consumer]:
    """Takes every stream partition; whoever had them before gets StaleEpoch at its next register.

    Raises StreamMoved, before anything of it is registered, for what makes a table stale while it is read.
    """
    prepared = set_up_server(pipeline)
    source, store = pipeline.settings.postgres, pipeline.store
    first_offset = encode_position(prepared.slot.confirmed_position or 0)
    assignment = store.streams.take_stream(pipeline.settings.name, owner=pipeline.owner, first_offset=first_offset)
    position = decode_position(min(assignment.next_offset.values()))
    stream = PostgresStream(
        url=pipeline.source_url,
        slot=source.slot,
        publication=source.publication,
        stream_partitions=source.stream_partitions,
        tables=prepared.plan.tables,
        server=prepared.plan.server,
        start=position,
        passes=_transaction_end(pipeline, assignment, prepared.slot, position),
        on_step=pipeline.on_step,
    )
    with closing(stream):
        _refuse_moved_slot(pipeline)
        tables = OpenTables(pipeline=pipeline, stream=stream, tables=prepared.plan.tables, marks=prepared.marks)
        watch = LogWatch(pipeline=pipeline)

        def check() -> None:
            tables.check()
            watch.look()

        try:
            yield consumer_of(
                pipeline,
                assignment,
                stream,
                position=position,
                check_tables=check,
                changing={table.name: table.schema for table in prepared.plan.tables if len(table.shapes) > 1},
            )
        except TableStale as error:
            mark_stale(pipeline, prepared.plan.tables, error)
            raise StreamMoved(error.found, remedy="open the consumer again: it reads on without that table") from error


def _transaction_end(pipeline: Pipeline, assignment: Assignment, slot: Slot, position: int) -> int | None:
    """Where the transaction ends that the slot sends again; None where nothing is, or the cut lay between two."""
    boundary = pipeline.store.positions.last_boundary(assignment.stream)
    if boundary is None or boundary.requested or boundary.position != encode_position(position):
        return None
    return position if slot.confirmed_position is not None and slot.confirmed_position < position else None


def _refuse_moved_slot(pipeline: Pipeline) -> None:
    """Again, now that nobody else can read the slot."""
    with session(pipeline.source_url) as connection:
        refuse_gap(pipeline, read_slot(connection, pipeline.settings.postgres.slot), read_server(connection))
