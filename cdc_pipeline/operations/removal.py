"""A table, or the whole pipeline, ended: on the source, in the metadata store, and where asked for in the bucket.

Everything may be killed anywhere and repeated: what is gone already is no failure. The metadata goes last, so that
until then a repetition still knows what belongs to the pipeline.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from cdc_pipeline.areas import CDC_EVENT, DATALAKE, DB_SNAPSHOT, STAGING_AREA, stream_prefix, table_prefix
from cdc_pipeline.errors import UsageError
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import step
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """`left_to_do`: statements that the pipeline's role may not run on the source."""

    tables: tuple[TableName, ...]
    was_known: bool
    objects: int
    left_to_do: tuple[str, ...]


def remove_table(pipeline: Pipeline, name: TableName, *, with_lake: bool) -> Removed:
    """Raises UsageError while pipeline.yml lists it, LeaseBusy while a consumer or anybody else is at work."""
    if name in pipeline.table_names():
        raise UsageError(
            f"pipeline.yml lists {name}, and the next consumer would register it again",
            expected="a table that is no longer to be kept",
            remedy="take it out of pipeline.yml, restart the consumer and Airflow's parser, then remove it",
        )
    stream = pipeline.settings.name
    pipeline.store.removal.check_idle(stream, name)
    left = pipeline.source.leave([name], whole=False)
    objects = _delete_objects(pipeline, _prefixes(name)) if with_lake else 0
    known = pipeline.store.removal.remove_table(stream, name)
    return Removed(tables=(name,), was_known=known, objects=objects, left_to_do=left)


def remove_pipeline(pipeline: Pipeline, *, with_lake: bool, source_is_gone: bool = False) -> Removed:
    """Slot, publication, cut files and metadata; with the lake also slices, snapshots and the lake's tables.

    Raises LeaseBusy while a consumer or anybody else is at work. `source_is_gone`: nothing is asked of the source.
    """
    stream = pipeline.settings.name
    pipeline.store.removal.check_idle(stream)
    registered = [row.name for row in pipeline.store.tables.tables() if row.stream == stream]
    tables = tuple(dict.fromkeys((*pipeline.table_names(), *registered)))
    left = () if source_is_gone else pipeline.source.leave(tables, whole=True)
    prefixes = [stream_prefix(stream), *(prefix for name in tables if with_lake for prefix in _prefixes(name))]
    objects = _delete_objects(pipeline, prefixes)
    known = pipeline.store.removal.remove_stream(stream)
    log.info("pipeline removed", stream=stream, tables=len(tables), objects=objects)
    return Removed(tables=tables, was_known=known, objects=objects, left_to_do=left)


def _prefixes(name: TableName) -> list[str]:
    return [table_prefix(area, name) for area in (CDC_EVENT, DB_SNAPSHOT, STAGING_AREA, DATALAKE)]


def _delete_objects(pipeline: Pipeline, prefixes: Sequence[str]) -> int:
    count = 0
    for prefix in prefixes:
        with step(pipeline.on_step, "removed_objects.delete"):
            keys = [found.key for found in pipeline.objects.list_prefix(prefix)]
            pipeline.objects.delete_all(keys)
        count += len(keys)
    return count
