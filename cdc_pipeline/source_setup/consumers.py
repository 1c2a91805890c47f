"""A stream that is ready to be read -> its consumer."""

from collections.abc import Callable, Mapping

from cdc_pipeline.consume.consumer import Consumer
from cdc_pipeline.consume.slice_cutter import SliceCutter
from cdc_pipeline.metadata_store.rows import Assignment
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.source_setup.tables import ignored_truncates, table_ids
from cdc_pipeline.sources.protocol import ChangeStream
from cdc_pipeline.wiring import Pipeline


def consumer_of(
    pipeline: Pipeline,
    assignment: Assignment,
    stream: ChangeStream,
    *,
    position: int,
    check_tables: Callable[[], None] = lambda: None,
    changing: Mapping[TableName, TableSchema] | None = None,
) -> Consumer:
    """`position`: where its next cut begins. `check_tables` raises what forbids to register another cut.

    `changing`: tables whose columns changed, with those that their events have from their generation on.
    """
    settings = pipeline.settings
    return Consumer(
        assignment=assignment,
        stream=stream,
        cutter=SliceCutter(
            start=position,
            commit_time=assignment.label.start if assignment.label else pipeline.clock(),
            slice_length=settings.slice_length,
            slice_rows=settings.source.slice_rows,
            last_label=assignment.label,
            cut_at=sorted({schema.generation for schema in (changing or {}).values()}),
        ),
        table_ids=table_ids(pipeline),
        object_store=pipeline.objects,
        store=pipeline.store,
        chain=pipeline.cut_chain(),
        clock=pipeline.clock,
        on_step=pipeline.on_step,
        ignored_truncates=ignored_truncates(pipeline),
        check_tables=check_tables,
        changing=changing,
    )
