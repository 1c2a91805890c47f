"""A stream that cannot be read on -> the same stream from a new slot on, all its tables waiting for a new snapshot."""

import structlog

from cdc_pipeline.errors import SourceError
from cdc_pipeline.record import TableName, decode_position, encode_position
from cdc_pipeline.source_setup.postgres import stream_of
from cdc_pipeline.sources.postgres.position import lsn_text
from cdc_pipeline.sources.postgres.session import session
from cdc_pipeline.sources.postgres.setup import execute_plan, plan_source
from cdc_pipeline.sources.postgres.slot import replace_slot
from cdc_pipeline.steps import step
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()


def begin_stream_again(pipeline: Pipeline) -> tuple[TableName, ...]:
    """The tables that are stale now: what came between the registered position and the new slot is given up.

    Killed, it is run again: nothing is registered at the new position before the registry knows it.
    """
    name, slot = pipeline.settings.name, pipeline.settings.postgres.slot
    pipeline.cut_chain().catch_up()
    registered = pipeline.store.streams.next_offset(name)
    if registered is None:
        raise SourceError(f"the stream {name} was never read", remedy="run cdc setup-source without --begin-again")
    with session(pipeline.source_url) as connection:
        plan = plan_source(connection, pipeline.settings.postgres, pipeline.settings.tables)
        if plan.server.end_position < decode_position(registered):
            raise SourceError(
                f"the source's log ends at {lsn_text(plan.server.end_position)}",
                expected=f"a log that has passed {lsn_text(decode_position(registered))}, up to which it is registered",
                remedy="run SELECT pg_switch_wal() on the source until it has, then try again; where that is too far,"
                " begin another pipeline with a lake of its own",
            )
        execute_plan(connection, plan, pipeline.on_step)  # a slot decodes no change that was made without a publication
        with step(pipeline.on_step, "source.replace_slot"):
            position = encode_position(replace_slot(connection, slot))
    gap = f"{lsn_text(decode_position(registered))} to {lsn_text(decode_position(position))}"
    pipeline.store.stale_tables.begin_stream_again(
        stream_of(pipeline, plan.server),
        position=position,
        reason=f"changes of the source from {gap} were never read; run cdc snapshot on the table",
    )
    log.warning("stream begun again", stream=name, gap=gap)
    return tuple(row.name for row in pipeline.store.tables.tables())
