"""A PostgreSQL server made ready and registered, and the consumer that reads its slot."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from cdc_pipeline.consumer import Consumer
from cdc_pipeline.errors import SourceError, SourceGap
from cdc_pipeline.metadata_store.rows import Stream
from cdc_pipeline.record import decode_position, encode_position
from cdc_pipeline.source_setup.consumers import consumer_of
from cdc_pipeline.source_setup.tables import register_table
from cdc_pipeline.sources.postgres_catalogue import Slot, read_slot
from cdc_pipeline.sources.postgres_position import lsn_text
from cdc_pipeline.sources.postgres_session import connect
from cdc_pipeline.sources.postgres_setup import SourcePlan, execute_plan, plan_source
from cdc_pipeline.sources.postgres_stream import PostgresStream
from cdc_pipeline.wiring import Pipeline

_LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The source as it was found ready, with the slot that is there now."""

    plan: SourcePlan
    slot: Slot


def plan_server(pipeline: Pipeline) -> SourcePlan:
    """What `set_up_server` would do; changes nothing."""
    with closing(connect(pipeline.source_url)) as connection:
        return plan_source(connection, pipeline.settings.postgres, pipeline.settings.tables)


def set_up_server(pipeline: Pipeline) -> Prepared:
    """Publication and slot exist, stream and tables are registered. Idempotent; refuses by name what cannot work."""
    settings = pipeline.settings
    with closing(connect(pipeline.source_url)) as connection:
        plan = plan_source(connection, settings.postgres, settings.tables)
        stream = Stream(
            name=settings.name,
            source_system_identifier=plan.server.system_identifier,
            source_timeline=plan.server.timeline,
            slot=settings.postgres.slot,
        )
        pipeline.store.streams.register_stream(stream, stream_partitions=settings.postgres.stream_partitions)
        _refuse_lost_slot(pipeline, plan.slot)
        execute_plan(connection, plan, pipeline.on_step)
        slot = read_slot(connection, settings.postgres.slot)
    if slot is None:
        raise SourceError(f"the slot {settings.postgres.slot} was not created", remedy="run cdc setup-source again")
    for table in plan.tables:
        register_table(pipeline, table.name, source_oid=table.oid, key=table.schema.key, schema=table.schema)
    return Prepared(plan=plan, slot=slot)


def _refuse_lost_slot(pipeline: Pipeline, slot: Slot | None) -> None:
    """A slot that is gone, or that the server gave up, cannot serve what was not registered yet."""
    name = pipeline.settings.postgres.slot
    registered = pipeline.store.streams.next_offset(pipeline.settings.name)
    if registered is None:
        return
    if slot is None or slot.wal_status == _LOST or slot.confirmed_position is None:
        found = "is gone" if slot is None else "has lost its log"
        raise SourceGap(
            f"the slot {name} {found}",
            expected=f"a slot that serves position {_shown(registered)}",
            remedy="drop what is left of it and run cdc snapshot on every table: changes in between cannot be read",
        )
    if slot.confirmed_position > decode_position(registered):
        raise SourceGap(
            f"the slot {name} stands at {_shown(encode_position(slot.confirmed_position))}",
            expected=f"a slot that still serves the next offset {_shown(registered)}",
            remedy="somebody else read it: run cdc snapshot on every table to begin again",
        )


def _shown(offset: str) -> str:
    return lsn_text(decode_position(offset))


@contextmanager
def open_slot_consumer(pipeline: Pipeline) -> Iterator[Consumer]:
    """Takes every stream partition; whoever had them before gets StaleEpoch at its next register."""
    prepared = set_up_server(pipeline)
    source, store = pipeline.settings.postgres, pipeline.store
    first_offset = encode_position(prepared.slot.confirmed_position or 0)
    assignment = store.streams.take_stream(pipeline.settings.name, owner=pipeline.owner, first_offset=first_offset)
    keys = {table.name: table.schema.key for table in prepared.plan.tables}
    stream = PostgresStream(
        url=pipeline.source_url,
        slot=source.slot,
        publication=source.publication,
        stream_partitions=source.stream_partitions,
        keys=keys,
    )
    with closing(stream):
        yield consumer_of(pipeline, assignment, stream, position=decode_position(min(assignment.next_offset.values())))
