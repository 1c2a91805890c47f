"""A stream that cannot be read on begins again, and all its tables wait for a new snapshot."""

import structlog

from cdc_pipeline.errors import SourceError
from cdc_pipeline.record import TableName
from cdc_pipeline.source_setup.registered import stream_of
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()


def begin_stream_again(pipeline: Pipeline) -> tuple[TableName, ...]:
    """Gives up what lies between the registered offset and the new beginning. Returns the tables, which are stale now.

    Killed, it is run again: nothing is registered behind the new beginning before the registry has it.
    """
    name = pipeline.settings.name
    pipeline.cut_chain().catch_up()
    registered = pipeline.store.streams.next_offset(name)
    if registered is None:
        raise SourceError(f"the stream {name} was never read", remedy="run cdc setup-source without --begin-again")
    beginning = pipeline.source.begin_again(registered)
    pipeline.store.stale_tables.begin_stream_again(
        stream_of(pipeline, beginning.identity),
        position=beginning.offset,
        reason=f"changes of the source from {beginning.gap} were never read; run cdc snapshot on the table",
    )
    log.warning("stream begun again", stream=name, gap=beginning.gap)
    return tuple(row.name for row in pipeline.store.tables.tables())
