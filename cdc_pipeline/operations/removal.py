"""A table, or the whole pipeline, ended: on the source, in the metadata store, and where asked for in the bucket.

Everything may be killed anywhere and repeated: what is gone already is no failure. The metadata goes last, so that
until then a repetition still knows what belongs to the pipeline.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg2.extensions
import structlog
from psycopg2 import sql

from cdc_pipeline.areas import CDC_EVENT, DATALAKE, DB_SNAPSHOT, STAGING_AREA, stream_prefix, table_prefix
from cdc_pipeline.errors import LeaseBusy, SourceAway, SourceError, UsageError
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import PostgresSource
from cdc_pipeline.sources.postgres.catalogue import read_slot, rows
from cdc_pipeline.sources.postgres.publication import read_publication
from cdc_pipeline.sources.postgres.session import session
from cdc_pipeline.sources.postgres.statements import published_tables
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
    left = _leave_source(pipeline, [name], whole=False)
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
    left = () if source_is_gone else _leave_source(pipeline, tables, whole=True)
    prefixes = [stream_prefix(stream), *(prefix for name in tables if with_lake for prefix in _prefixes(name))]
    objects = _delete_objects(pipeline, prefixes)
    known = pipeline.store.removal.remove_stream(stream)
    log.info("pipeline removed", stream=stream, tables=len(tables), objects=objects)
    return Removed(tables=tables, was_known=known, objects=objects, left_to_do=left)


def _leave_source(pipeline: Pipeline, tables: Sequence[TableName], *, whole: bool) -> tuple[str, ...]:
    """The statements that failed for want of a right; the slot comes first: it holds the server's log back."""
    source = pipeline.settings.source
    if not isinstance(source, PostgresSource):
        return ()
    with session(pipeline.source_url) as connection:
        connection.autocommit = True
        slot = read_slot(connection, source.slot)
        if slot is not None and slot.active_pid is not None:
            raise LeaseBusy(
                f"a consumer reads the slot {source.slot} (process {slot.active_pid} of the source)",
                expected="nobody who registers more of what is to be removed",
                remedy="stop the consumer first",
            )
        if whole and slot is not None:
            with step(pipeline.on_step, "source.drop_slot"):
                rows(connection, "SELECT pg_drop_replication_slot(%s)", (source.slot,))
        statements = _publication_statements(connection, source, tables, whole=whole)
    return tuple(statement for statement in statements if not _is_run(pipeline, statement))


def _publication_statements(
    connection: psycopg2.extensions.connection, source: PostgresSource, tables: Sequence[TableName], *, whole: bool
) -> list[str]:
    """A publication that holds tables of others too only loses ours."""
    if read_publication(connection, source.publication) is None:
        return []
    members = published_tables(connection, source)
    ours = {(name.schema, name.table) for name in tables}
    publication = sql.Identifier(source.publication)
    if whole and members <= ours:
        return [sql.SQL("DROP PUBLICATION {}").format(publication).as_string(connection)]
    leaving = [sql.Identifier(*member) for member in sorted(members & ours)]
    if not leaving:
        return []
    drop = sql.SQL("ALTER PUBLICATION {} DROP TABLE {}")
    return [drop.format(publication, sql.SQL(", ").join(leaving)).as_string(connection)]


def _is_run(pipeline: Pipeline, statement: str) -> bool:
    try:
        with session(pipeline.source_url) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            with step(pipeline.on_step, "source.drop_publication"):
                cursor.execute(statement)
    except SourceAway:
        raise
    except SourceError as error:
        log.warning("left to an administrator", statement=statement, found=error.found)
        return False
    return True


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
